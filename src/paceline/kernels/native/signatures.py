"""Signatures of the C library's functions and its structures, for ctypes: native/src/*.h."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_void_p
from typing import Any

# Name of a function -> its result, its arguments. Sizes are int64_t, pointers void*.
_MATRIX = (c_int, c_void_p, c_int64, c_int64)
SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "pl_sources": (c_char_p, ()),
    "pl_tiers": (c_char_p, ()),
    "pl_tier": (c_char_p, ()),
    "pl_use_tier": (c_int, (c_char_p,)),
    "pl_use_openmp": (None, (c_void_p, c_void_p)),
    "pl_cpu_has": (c_int, (c_char_p,)),
    "pl_packed_bytes": (c_int64, (c_int, c_int64, c_int64)),
    "pl_pack": (c_int, (c_int, c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_int)),
    "pl_values": (c_int, (*_MATRIX, c_void_p, c_int64, c_void_p, c_int)),
    "pl_dequantise": (c_int, (*_MATRIX, c_void_p, c_int)),
    "pl_attend": (c_int, (c_void_p, c_int)),
    "pl_likeliest": (c_int, (c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p)),
    "pl_move": (c_int, (c_void_p, c_int64, c_void_p, c_void_p, c_int64)),
    "pl_look_up": (c_int, (c_void_p,)),
    "pl_look_up_lengths": (c_int, (c_void_p, c_int64)),
    "pl_add_tokens": (c_int, (c_void_p, c_void_p, c_int64)),
    "pl_ngrams_new": (c_void_p, (c_int64, c_int64, c_int64, c_int64)),
    "pl_ngrams_free": (None, (c_void_p,)),
    "pl_ngrams_size": (c_int64, (c_void_p, c_int64)),
    "pl_ngrams_count": (c_int, (c_void_p, c_void_p, c_int64, c_int64)),
    "pl_ngrams_draft": (c_int, (c_void_p,)),
    "pl_unite": (c_int, (c_void_p,)),
    "pl_cut_union": (None, (c_void_p, c_int64)),
    "pl_union_ends": (c_int64, (c_void_p, c_int64, c_int64)),
    "pl_calibration_new": (c_void_p, (c_void_p, c_double)),
    "pl_calibration_heir": (c_void_p, (c_void_p, c_double, c_double)),
    "pl_calibration_free": (None, (c_void_p,)),
    "pl_calibration_observe": (c_int, (c_void_p, c_void_p, c_void_p, c_int64)),
    "pl_size_tree": (c_int, (c_void_p,)),
    "pl_run": (c_int, (c_void_p, c_int64, c_void_p, c_int)),
    "pl_run_texts": (c_int, (c_void_p, c_int64, c_void_p, c_void_p, c_int)),
    "pl_run_chain": (c_int, (c_void_p, c_int64, c_void_p, c_void_p, c_int)),
    "pl_draft_medusa": (c_int, (c_void_p, c_int)),
    "pl_draft_chimera": (c_int, (c_void_p, c_int)),
    "pl_draft_eagle": (c_int, (c_void_p, c_int)),
    "pl_product": (c_int, (*_MATRIX, c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_int)),
}

_KINDS: dict[str, Any] = {"i": c_int32, "q": c_int64, "f": c_float, "d": c_double, "P": c_void_p}


def _laid(layout: str) -> tuple[tuple[str, Any], ...]:
    """Fields from "q rows heads, P query": after a type as in `struct`, or a structure of this
    module, the names that have it."""
    known, groups = _KINDS | globals(), (group.split() for group in layout.split(","))
    return tuple((name, known[kind]) for kind, *names in groups for name in names)


class Attention(ctypes.Structure):
    """`struct pl_attention` of native/src/tier.h; callers leave names with `_` alone."""

    _fields_ = _laid(
        "q rows heads key_heads size value_size, P query, q query_head query_row, "
        "P keys, q key_head key_slot, P values, q value_head value_slot, "
        "P first count extra_begin extra out, f scale, i kind, f cap, i _unused, "
        "P _ranges, q _part _tail, P _partial _done"
    )


class Operand(ctypes.Structure):
    """`struct pl_operand` of native/src/program.h; likewise below."""

    _fields_ = _laid("P data, q table buffer stride at period each")


class Step(ctypes.Structure):
    """`struct pl_step`."""

    _fields_ = _laid(
        "i op function join layer seen halves, q count size heads key_heads, "
        "Operand input other third, q out_buffer out_stride out_at, P order, i format, "
        "f number cap, i of_kept, q outputs inputs, P panels bias"
    )


class Layer(ctypes.Structure):
    """`struct pl_layer`."""

    _fields_ = _laid("P keys values, q key_head key_slot value_head value_slot")


class Store(ctypes.Structure):
    """`struct pl_store`."""

    _fields_ = _laid("P begin, q heads head slot bytes")


class Seen(ctypes.Structure):
    """`struct pl_seen`."""

    _fields_ = _laid("P first count extra_begin extra")


class Pass(ctypes.Structure):
    """`struct pl_pass`."""

    _fields_ = _laid(
        "q rows kept given_count states_stride, P tokens positions where keep given tables "
        "table_strides layers seen arena arena_of_kept logits states, q cache_kind table_rows"
    )


class Texts(ctypes.Structure):
    """`struct pl_texts`; `each` is an array of `pl_text`, five int64 each."""

    _fields_ = _laid("q count kinds, P each tokens parents windows")


class Chain(ctypes.Structure):
    """`struct pl_chain`."""

    _fields_ = _laid(
        "q count most numbers kinds start cached made, "
        "P ids windows end reads tokens shares seconds"
    )


class ChainEnd(ctypes.Structure):
    """`struct pl_chain_end`."""

    _fields_ = _laid("d share path_chance trust low high, P least borders lines rows, q columns")


class Part(ctypes.Structure):
    """`struct pl_part` of native/src/drafts.h; likewise below."""

    _fields_ = _laid("P steps, q count, P arena given out")


class Tree(ctypes.Structure):
    """`struct pl_tree` of native/src/tree.h; see `paceline.tree_columns`."""

    _fields_ = _laid("q nodes, P tokens parents sources weights")


class Guesses(ctypes.Structure):
    """`struct pl_guesses`."""

    _fields_ = _laid("q outputs ranks budget heard, P ids noise, Tree found")


class Medusa(ctypes.Structure):
    """`struct pl_medusa`."""

    _fields_ = _laid("Part blocks head, q heads hidden, P state, Guesses guesses")


class Chimera(ctypes.Structure):
    """`struct pl_chimera`."""

    _fields_ = _laid(
        "Part green read, P levels, q depth order hidden beam length fresh, d least, "
        "P end text states, q states_stride, P words, q words_format words_count, "
        "P layers tables table_strides, Guesses guesses, q grown"
    )


class Eagle(ctypes.Structure):
    """`struct pl_eagle`."""

    _fields_ = _laid(
        "Part read grow head, q width hidden depth beam length fresh, d least, P end text states, "
        "q states_stride, P root words, q words_format words_count, "
        "P layers tables table_strides, Guesses guesses, q grown"
    )


class Suffixes(ctypes.Structure):
    """`struct pl_suffixes` of native/src/suffixes.h."""

    _fields_ = _laid(
        "P tokens order, q count size most, P tail, q length least hits budget per_match depth "
        "branches, d doubt, q matched shorter begin end, Tree found, d total"
    )


class NGramDraft(ctypes.Structure):
    """`struct pl_ngram_draft` of native/src/ngram_tables.h."""

    _fields_ = _laid("P own others tail, q length budget depth, d doubt, Tree found")


class Kinds(ctypes.Structure):
    """`struct pl_kinds` of native/src/calibration.h."""

    _fields_ = _laid("P borders depths, q border_count depth_count, d least most unknown prior")


class Sizing(ctypes.Structure):
    """`struct pl_sizing` of native/src/calibration.h."""

    _fields_ = _laid("P of, Tree tree, d sure, P costs path_chances kept, q keeps, d promised")


class Union(ctypes.Structure):
    """`struct pl_union` of native/src/unions.h."""

    _fields_ = _laid(
        "q alike room, Tree tree, P claims, d sure, Tree given, q at by, d unweighted, P places"
    )
