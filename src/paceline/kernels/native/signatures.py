"""Signatures of the C library's functions, for ctypes: native/src/api.h and tier.h."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_void_p
from typing import Any

__all__ = [
    "SIGNATURES",
    "Attention",
    "Chain",
    "ChainEnd",
    "Chimera",
    "Eagle",
    "Guesses",
    "Layer",
    "Medusa",
    "NGramDraft",
    "Operand",
    "Part",
    "Pass",
    "Seen",
    "Step",
    "Store",
    "Suffixes",
    "Texts",
]

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
    "pl_likeliest": (
        c_int,
        (c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p),
    ),
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


class Attention(ctypes.Structure):
    """`struct pl_attention` of native/src/tier.h; callers leave names with `_` alone."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "heads", "key_heads", "size", "value_size")),
        ("query", ctypes.c_void_p),
        ("query_head", ctypes.c_int64),
        ("query_row", ctypes.c_int64),
        ("keys", ctypes.c_void_p),
        ("key_head", ctypes.c_int64),
        ("key_slot", ctypes.c_int64),
        ("values", ctypes.c_void_p),
        ("value_head", ctypes.c_int64),
        ("value_slot", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("first", "count", "extra_begin", "extra", "out")),
        ("scale", ctypes.c_float),
        ("kind", ctypes.c_int32),
        ("cap", ctypes.c_float),
        ("_unused", ctypes.c_int32),
        ("_ranges", ctypes.c_void_p),
        ("_part", ctypes.c_int64),
        ("_tail", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("_partial", "_done", "_failed")),
    )


class Operand(ctypes.Structure):
    """`struct pl_operand` of native/src/program.h; likewise below."""

    _fields_ = (
        ("data", c_void_p),
        *((name, c_int64) for name in ("table", "buffer", "stride", "at", "period", "each")),
    )


class Step(ctypes.Structure):
    """`struct pl_step`."""

    _fields_ = (
        *((name, c_int32) for name in ("op", "function", "join", "layer", "seen", "halves")),
        *((name, c_int64) for name in ("count", "size", "heads", "key_heads")),
        *((name, Operand) for name in ("input", "other", "third")),
        *((name, c_int64) for name in ("out_buffer", "out_stride", "out_at")),
        ("order", c_void_p),
        ("format", c_int32),
        ("number", c_float),
        ("cap", c_float),
        ("of_kept", c_int32),
        ("outputs", c_int64),
        ("inputs", c_int64),
        ("panels", c_void_p),
        ("bias", c_void_p),
    )


class Layer(ctypes.Structure):
    """`struct pl_layer`."""

    _fields_ = (
        ("keys", c_void_p),
        ("values", c_void_p),
        *((name, c_int64) for name in ("key_head", "key_slot", "value_head", "value_slot")),
    )


class Store(ctypes.Structure):
    """`struct pl_store`."""

    _fields_ = (
        ("begin", c_void_p),
        *((name, c_int64) for name in ("heads", "head", "slot", "bytes")),
    )


class Seen(ctypes.Structure):
    """`struct pl_seen`."""

    _fields_ = tuple((name, c_void_p) for name in ("first", "count", "extra_begin", "extra"))


class Pass(ctypes.Structure):
    """`struct pl_pass`."""

    _fields_ = (
        *((name, c_int64) for name in ("rows", "kept", "given_count", "states_stride")),
        *((name, c_void_p) for name in ("tokens", "positions", "where", "keep", "given")),
        *((name, c_void_p) for name in ("tables", "table_strides", "layers", "seen")),
        *((name, c_void_p) for name in ("arena", "arena_of_kept", "logits", "states")),
        *((name, c_int64) for name in ("cache_kind", "table_rows")),
    )


class Texts(ctypes.Structure):
    """`struct pl_texts`; `each` is an array of `pl_text`, five int64 each."""

    _fields_ = (
        *((name, c_int64) for name in ("count", "kinds")),
        *((name, c_void_p) for name in ("each", "tokens", "parents", "windows")),
    )


class Chain(ctypes.Structure):
    """`struct pl_chain`."""

    _fields_ = (
        *(
            (name, c_int64)
            for name in ("count", "most", "numbers", "kinds", "start", "cached", "made")
        ),
        *((name, c_void_p) for name in ("ids", "windows", "end")),
        *((name, c_void_p) for name in ("reads", "tokens", "shares", "seconds")),
    )


class ChainEnd(ctypes.Structure):
    """`struct pl_chain_end`."""

    _fields_ = (
        *((name, c_double) for name in ("share", "path_chance", "trust", "low", "high")),
        *((name, c_void_p) for name in ("least", "borders", "lines", "rows")),
        ("columns", c_int64),
    )


class Part(ctypes.Structure):
    """`struct pl_part` of native/src/drafts.h; likewise below."""

    _fields_ = (
        ("steps", c_void_p),
        ("count", c_int64),
        *((name, c_void_p) for name in ("arena", "given", "out")),
    )


class Guesses(ctypes.Structure):
    """`struct pl_guesses`."""

    _fields_ = (
        *((name, c_int64) for name in ("outputs", "ranks", "budget", "nodes", "heard")),
        *((name, c_void_p) for name in ("ids", "noise", "tokens", "parents", "path_chances")),
    )


class Medusa(ctypes.Structure):
    """`struct pl_medusa`."""

    _fields_ = (
        ("blocks", Part),
        ("head", Part),
        ("heads", c_int64),
        ("hidden", c_int64),
        ("state", c_void_p),
        ("guesses", Guesses),
    )


class Chimera(ctypes.Structure):
    """`struct pl_chimera`."""

    _fields_ = (
        ("green", Part),
        ("read", Part),
        ("levels", c_void_p),
        *((name, c_int64) for name in ("depth", "order", "hidden", "beam", "length", "fresh")),
        ("least", c_double),
        *((name, c_void_p) for name in ("end", "text", "states")),
        ("states_stride", c_int64),
        ("words", c_void_p),
        ("words_format", c_int64),
        ("words_count", c_int64),
        *((name, c_void_p) for name in ("layers", "tables", "table_strides")),
        ("guesses", Guesses),
        ("grown", c_int64),
    )


class Eagle(ctypes.Structure):
    """`struct pl_eagle`."""

    _fields_ = (
        *((name, Part) for name in ("read", "grow", "head")),
        *((name, c_int64) for name in ("width", "hidden", "depth", "beam", "length", "fresh")),
        ("least", c_double),
        *((name, c_void_p) for name in ("end", "text", "states")),
        ("states_stride", c_int64),
        *((name, c_void_p) for name in ("root", "words")),
        ("words_format", c_int64),
        ("words_count", c_int64),
        *((name, c_void_p) for name in ("layers", "tables", "table_strides")),
        ("guesses", Guesses),
        ("grown", c_int64),
    )


class Suffixes(ctypes.Structure):
    """`struct pl_suffixes` of native/src/suffixes.h."""

    _fields_ = (
        ("tokens", c_void_p),
        ("order", c_void_p),
        *((name, c_int64) for name in ("count", "size", "most")),
        ("tail", c_void_p),
        *((name, c_int64) for name in ("length", "least", "hits", "budget", "per_match")),
        *((name, c_int64) for name in ("depth", "branches")),
        ("doubt", c_double),
        *((name, c_int64) for name in ("matched", "shorter", "begin", "end", "nodes")),
        *((name, c_void_p) for name in ("node_tokens", "node_parents", "weights")),
        ("total", c_double),
    )


class NGramDraft(ctypes.Structure):
    """`struct pl_ngram_draft` of native/src/ngram_tables.h."""

    _fields_ = (
        *((name, c_void_p) for name in ("own", "others", "tail")),
        *((name, c_int64) for name in ("length", "budget", "depth")),
        ("doubt", c_double),
        ("nodes", c_int64),
        *((name, c_void_p) for name in ("node_tokens", "node_parents", "weights")),
    )
