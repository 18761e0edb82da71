"""Calls every function of a sanitized library on arrays that end where they have to.

LD_PRELOAD=libasan.so python sanitized_run.py libpaceline.so build/library.py
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

BLOCKS = [
    *((32, 18), (32, 20), (32, 22), (32, 24), (32, 34), (256, 144), (256, 176), (256, 210)),
    *((1, 4), (1, 2), (1, 2), (1, 2)),
]
POOL, SIZE = 600, 24
KINDS = (4 * SIZE, 2 * SIZE, 2 * SIZE, SIZE + 4)  # bytes of a head in a slot


def exact(array: np.ndarray) -> np.ndarray:
    """A copy in memory of its own, whose end the sanitizer knows."""
    return np.array(array, copy=True, order="C")


def products(library: ctypes.CDLL, rng: np.random.Generator) -> None:
    for format, (per_block, size) in enumerate(BLOCKS):
        for outputs in (1, 16, 33):
            inputs = 3 * per_block
            blocks = exact(rng.integers(0, 60, (outputs, 3 * size), dtype=np.uint8))
            order = exact(rng.permutation(outputs).astype(np.int64))
            panels = np.empty(library.pl_packed_bytes(format, outputs, inputs), np.uint8)
            at = panels.ctypes.data
            assert not library.pl_pack(
                format, blocks.ctypes.data, order.ctypes.data, outputs, inputs, at, 2
            )
            values = np.empty((outputs, inputs), np.float32)
            assert not library.pl_values(
                format, at, outputs, inputs, order.ctypes.data, outputs, values.ctypes.data, 2
            )
            assert not library.pl_dequantise(
                format, blocks.ctypes.data, outputs, inputs, values.ctypes.data, 2
            )
            for count in (1, 2, 7):
                rows = exact(rng.standard_normal((count, inputs), dtype=np.float32))
                rows[-1] = 2.0**-124  # 127 over it is infinite
                bias = exact(rng.standard_normal(outputs, dtype=np.float32))
                out = np.empty((count, outputs), np.float32)
                assert not library.pl_product(
                    format, at, outputs, inputs, rows.ctypes.data, count,
                    bias.ctypes.data, out.ctypes.data, outputs, 2,
                )  # fmt: skip


def attention(
    library: ctypes.CDLL, record: type[ctypes.Structure], rng: np.random.Generator
) -> None:
    for rows, (kind, bytes_of_head) in product((1, 2, 13), enumerate(KINDS)):
        query = exact(rng.standard_normal((6, rows, SIZE), dtype=np.float32))
        keys = exact(rng.integers(0, 60, (2, POOL, bytes_of_head), dtype=np.uint8))
        first = exact(rng.integers(0, 9, rows).astype(np.int32))
        count = exact(rng.integers(1, POOL - 20, rows).astype(np.int32))
        extra = exact(np.tile(np.array([POOL - 3, POOL - 1], np.int32), rows))
        begins = exact(np.arange(0, 2 * rows + 1, 2, dtype=np.int32))
        out = np.empty((rows, 6, SIZE), np.float32)
        call = record(
            rows=rows, heads=6, key_heads=2, size=SIZE, value_size=SIZE,
            query=query.ctypes.data, query_head=rows * SIZE, query_row=SIZE,
            keys=keys.ctypes.data, key_head=POOL * bytes_of_head, key_slot=bytes_of_head,
            values=keys.ctypes.data, value_head=POOL * bytes_of_head, value_slot=bytes_of_head,
            first=first.ctypes.data, count=count.ctypes.data, extra_begin=begins.ctypes.data,
            extra=extra.ctypes.data, out=out.ctypes.data, scale=0.2, kind=kind,
        )  # fmt: skip
        assert not library.pl_attend(ctypes.addressof(call), 2)
        assert np.isfinite(out).all()


def likeliest(library: ctypes.CDLL, rng: np.random.Generator) -> None:
    for count, numbers, most in ((1, 1, 3), (2, 70, 10), (3, 129, 1)):
        rows = exact(rng.standard_normal((count, numbers), dtype=np.float32))
        rows[0, 0] = -np.inf
        places, shares = np.empty((count, most), np.int64), np.empty((count, most), np.float32)
        assert not library.pl_likeliest(
            rows.ctypes.data, count, numbers, most, places.ctypes.data, shares.ctypes.data
        )
        assert (places >= 0).all() and (places < numbers).all()


def moves(library: ctypes.CDLL, native: Any, rng: np.random.Generator) -> None:
    held = exact(rng.standard_normal((2, POOL, SIZE), dtype=np.float32))
    expected = held.copy()
    expected[:, [0, 1]] = expected[:, [3, POOL - 1]]
    store = native.Store(held.ctypes.data, 2, 4 * POOL * SIZE, 4 * SIZE, 4 * SIZE)
    old, new = exact(np.array([3, POOL - 1])), exact(np.array([0, 1]))
    at = old.ctypes.data, new.ctypes.data
    assert not library.pl_move(ctypes.addressof(store), 1, *at, 2)
    assert np.array_equal(held, expected)


def room_for_tree(native: Any, nodes: int) -> tuple[Any, object]:
    """A tree with room for exactly this many nodes, and the memory to hold."""
    columns, weights = exact(np.empty((3, nodes), np.int64)), exact(np.empty(nodes))
    tokens, parents, sources = (column.ctypes.data for column in columns)
    found = native.Tree(
        tokens=tokens, parents=parents, sources=sources, weights=weights.ctypes.data
    )
    return found, (columns, weights)


def suffixes(library: ctypes.CDLL, native: Any, rng: np.random.Generator) -> None:
    """A text that grows is looked up; then with an order that names places it does not have."""
    size, budget = 300, 7
    tokens = exact(rng.integers(-1, 3, size).astype(np.int32))
    text, order = np.empty(size, np.int32), np.empty(size, np.int32)
    tail = exact(np.array([0, 1, 0, 2], np.int32))
    found, _held = room_for_tree(native, budget)
    call = native.Suffixes(
        tokens=text.ctypes.data, order=order.ctypes.data, most=5, tail=tail.ctypes.data,
        length=4, least=1, hits=256, budget=budget, depth=9, branches=3, doubt=3.0,
        found=found,
    )  # fmt: skip
    address = ctypes.addressof(call)
    for begin in range(0, size, 50):
        assert not library.pl_add_tokens(address, tokens[begin:].ctypes.data, 50)
        assert not library.pl_look_up(address)
        assert 0 < call.found.nodes <= budget and call.end <= call.size <= call.count
        call.total = 0.0
        assert not library.pl_look_up_lengths(address, 3)
        assert 0 < call.found.nodes <= budget and call.total > 0
        call.tail, call.length = tail.ctypes.data, 4
    order[:] = rng.integers(-(2**31), 2**31, size)
    order[::5] = 1
    for length in range(5):
        call.length = length
        assert not library.pl_look_up(address)
    call.hits = 257
    assert library.pl_look_up(address) == 2


def ngrams(library: ctypes.CDLL, native: Any, rng: np.random.Generator) -> None:
    """A text is counted beyond what there is room for, and drafted from, references too."""
    size, piece, longest = 6000, 50, 4
    tokens = exact(np.minimum(*rng.integers(0, 300, (2, size))).astype(np.int32))
    own, others = library.pl_ngrams_new(1, longest, 3, 1024), library.pl_ngrams_new(2, 64, 1, 1024)
    for budget in (3, 100):
        found, _held = room_for_tree(native, budget)
        for begin in range(longest, size - piece, piece):
            at = tokens[begin - longest :].ctypes.data
            assert not library.pl_ngrams_count(own, at, longest, piece)
            assert not library.pl_ngrams_count(others, at, 0, piece)
            draft = native.NGramDraft(
                own=own, others=others, tail=at, length=longest, budget=budget, depth=9, doubt=3.0,
                found=found,
            )  # fmt: skip
            assert not library.pl_ngrams_draft(ctypes.addressof(draft))
            assert 0 <= draft.found.nodes <= budget
    assert 0 < library.pl_ngrams_size(own, 2) <= 1024
    assert not library.pl_ngrams_size(own, longest + 1)
    assert library.pl_ngrams_new(3, 2, 1, 1024) is None
    for each in (own, others):
        library.pl_ngrams_free(each)


def chosen_trees(library: ctypes.CDLL, native: Any, rng: np.random.Generator) -> None:
    """Trees of some sources are united and cut, sized and judged, over two texts."""
    borders, depths = exact(np.array([0.2, 0.7])), exact(np.array([2, 4]))
    kinds = native.Kinds(
        borders=borders.ctypes.data, depths=depths.ctypes.data, border_count=2, depth_count=2,
        least=0.001, most=0.995, unknown=0.5, prior=4.0,
    )  # fmt: skip
    everyone = library.pl_calibration_new(ctypes.addressof(kinds), 40.0)
    room, size = 40, 12
    tree, _held = room_for_tree(native, room)
    claims, places = np.empty(room), np.empty(room, np.int64)
    united = native.Union(
        alike=3, room=room, unweighted=0.5, tree=tree, claims=claims.ctypes.data,
        places=places.ctypes.data,
    )  # fmt: skip
    union, costs = ctypes.addressof(united), exact(1 + 0.1 * np.arange(room + 1))
    path_chances, kept = np.empty(room), np.empty(room, np.int64)
    for _ in range(2):
        own = library.pl_calibration_heir(everyone, 16.0, 8.0)
        for _ in range(60):
            united.tree.nodes = 0
            for source in range(3):
                tokens = exact(rng.integers(0, 3, size))
                parents = exact(np.minimum(rng.integers(-1, size, size), np.arange(size) - 1))
                given = exact(rng.random(size))
                united.given = native.Tree(
                    nodes=size, tokens=tokens.ctypes.data, parents=parents.ctypes.data,
                    weights=given.ctypes.data if source else None,
                )  # fmt: skip
                united.at, united.by = min(united.tree.nodes, 2) - 1, 1 << source
                assert not library.pl_unite(union)
            assert 0 <= library.pl_union_ends(union, 6, 2) <= 2
            library.pl_cut_union(union, 20)
            sizing = native.Sizing(
                of=own, tree=united.tree, sure=1.0, costs=costs.ctypes.data,
                path_chances=path_chances.ctypes.data, kept=kept.ctypes.data,
            )  # fmt: skip
            assert not library.pl_size_tree(ctypes.addressof(sizing))
            assert 0 <= sizing.keeps <= united.tree.nodes <= 20
            said = exact(rng.integers(0, 3, 3))
            assert not library.pl_calibration_observe(own, everyone, said.ctypes.data, 3)
        library.pl_calibration_free(own)
    united.given.nodes = room + 1
    assert library.pl_unite(union) == 2
    library.pl_calibration_free(everyone)


ROWS, KEPT, HIDDEN, HEADS, VOCAB, SLOTS = 5, 2, 64, 2, 33, 9
OF_KEPT, LOGITS = -2, -1
OUTPUTS = 7


def one_pass(library: ctypes.CDLL, native: Any, rng: np.random.Generator) -> None:
    """Every kind of step once, on arenas that end where they have to."""
    held: list[np.ndarray] = []

    def numbers(*shape: int) -> int:
        held.append(exact(rng.standard_normal(shape, dtype=np.float32)))
        return int(held[-1].ctypes.data)

    def integers(kind: type, values: Sequence[int]) -> int:
        held.append(exact(np.array(values, kind)))
        return int(held[-1].ctypes.data)

    def value(place: int, table: int = -1, count: int = HIDDEN) -> Any:
        return native.Operand(
            table=table, buffer=place * HIDDEN, stride=count, period=count, each=1
        )

    def data(count: int) -> Any:
        return native.Operand(data=numbers(count), table=-1, period=count, each=1)

    def matrix(format: int, outputs: int, width: int) -> dict[str, Any]:
        blocks = exact(rng.integers(0, 60, (outputs, width), dtype=np.uint8))
        panels = np.empty(library.pl_packed_bytes(format, outputs, HIDDEN), np.uint8)
        at = panels.ctypes.data
        assert not library.pl_pack(format, blocks.ctypes.data, None, outputs, HIDDEN, at, 2)
        held.append(panels)
        return {"format": format, "outputs": outputs, "inputs": HIDDEN, "panels": at}

    def step(op: int, out: int, *operands: Any, **others: Any) -> Any:
        made = native.Step(op=op, count=HIDDEN, out_buffer=out * HIDDEN, out_stride=HIDDEN)
        for name, number in others.items():
            setattr(made, name, number)
        for name, operand in zip(("input", "other", "third"), operands):
            setattr(made, name, operand)
        return made

    size, place = HIDDEN // HEADS, native.Operand(table=0, period=HIDDEN // HEADS, each=1)
    turned = integers(np.int32, [-(size - i) for i in range(size)])
    mixed = integers(np.int32, [(i + 1) + (1 << 24) * (i % 2) for i in range(HIDDEN)])
    scattered = integers(np.int32, range(1, VOCAB, 2))
    head = matrix(0, VOCAB // 2, 36)
    steps = [
        step(0, 0, format=-1, outputs=VOCAB, panels=numbers(VOCAB, HIDDEN)),
        step(1, 0, outputs=VOCAB),
        step(4, 1, value(0), data(size), size=size, number=1e-6),
        step(8, 2, value(1), size=HIDDEN, bias=numbers(HIDDEN), **matrix(0, HIDDEN, 36)),
        step(6, 3, value(2), place, place, size=size, order=turned),
        step(9, 0, value(3), value(2), size=size, key_heads=HEADS, count=size),
        step(10, 4, value(3), size=size, heads=HEADS, key_heads=HEADS, number=0.2, cap=30.0),
        step(7, 5, value(4), value(0), order=mixed),
        step(2, 6, value(5), value(0), function=1, join=3),
        step(5, 7, value(6), data(HIDDEN), data(HIDDEN), size=HIDDEN, number=1e-5),
        step(8, 8, value(7), size=HIDDEN, **matrix(8, HIDDEN, 4 * HIDDEN)),
        step(8, 9, value(8), size=HIDDEN, **matrix(11, HIDDEN, 2 * HIDDEN)),
        step(3, 9, value(8), size=size, count=HEADS, out_stride=HEADS),
        step(11, 0, value(8)),
        step(12, 0, value(8), of_kept=1),
        step(8, 1, value(0, OF_KEPT), of_kept=1, size=HIDDEN, out_stride=VOCAB // 2, **head),
        step(
            13, 0, value(1, OF_KEPT, VOCAB // 2), of_kept=1, count=VOCAB, size=VOCAB // 2,
            order=scattered, number=-np.inf, out_stride=VOCAB,
        ),
    ]  # fmt: skip
    steps[-1].out_buffer = LOGITS
    keys, logits = np.zeros((2, HEADS, SLOTS, size), np.float32), np.empty((KEPT, VOCAB))
    layer = native.Layer(keys[0].ctypes.data, keys[1].ctypes.data, 4 * SLOTS * size, 4 * size)
    layer.value_head, layer.value_slot = layer.key_head, layer.key_slot
    seen = native.Seen(
        integers(np.int32, [0] * ROWS), integers(np.int32, range(1, ROWS + 1)),
        integers(np.int32, [0] * (ROWS + 1)), integers(np.int32, [0]),
    )  # fmt: skip
    logits = exact(np.empty((KEPT, VOCAB), np.float32))
    given = native.Pass(rows=ROWS, kept=KEPT, given_count=2, states_stride=HIDDEN)
    given.tokens, given.given = (
        integers(np.int64, [0, VOCAB - 1, VOCAB, 1, VOCAB + 1]),
        numbers(2, HIDDEN),
    )
    given.positions = given.where = integers(np.int64, range(ROWS))
    given.keep, given.logits = integers(np.int64, [1, 4]), logits.ctypes.data
    tables, strides = (ctypes.c_void_p * 1)(numbers(ROWS, size)), (ctypes.c_int64 * 1)(size)
    given.tables, given.table_strides = ctypes.addressof(tables), ctypes.addressof(strides)
    given.table_rows = ROWS
    given.layers, given.seen = ctypes.addressof(layer), ctypes.addressof(seen)
    given.arena, given.arena_of_kept = numbers(10 * ROWS, HIDDEN), numbers(2 * KEPT, HIDDEN)
    given.states = numbers(SLOTS, HIDDEN)
    array = (native.Step * len(steps))(*steps)
    for threads, kind in ((1, 0), (2, 0), (1, 2), (2, 3)):
        given.cache_kind = kind
        assert not library.pl_run(
            ctypes.addressof(array), len(steps), ctypes.addressof(given), threads
        )
        assert np.isfinite(logits[:, ::2][:, : VOCAB // 2]).all()
        assert np.isneginf(logits[:, 1::2]).all()
    chains(library, native, array, given)
    given.table_rows = ROWS - 1
    assert library.pl_run(ctypes.addressof(array), len(steps), ctypes.addressof(given), 1) == 2
    given.table_rows = ROWS
    given.tokens = integers(np.int64, [0, 1, 2, 3, VOCAB + 2])
    assert library.pl_run(ctypes.addressof(array), len(steps), ctypes.addressof(given), 1) == 2


def chains(library: ctypes.CDLL, native: Any, steps: Any, one: Any) -> None:
    """Two rows that are read, and then a pass for each that is said; all arrays end with the last."""
    rows, passes, most = 2, 3, 4
    reads, ids = exact(np.arange(rows + passes - 1)), exact(np.arange(VOCAB)[::-1])
    tokens, shares = np.empty((passes, most), np.int64), np.empty((passes, most), np.float32)
    seconds, windows = exact(np.zeros(passes)), exact(np.array([2]))
    given = native.Pass()
    ctypes.memmove(ctypes.addressof(given), ctypes.addressof(one), ctypes.sizeof(given))
    given.rows, given.cache_kind = rows, 0
    least, borders, lines = exact(np.zeros(passes)), exact(np.array([0.5])), exact(np.ones(8))
    places = exact(np.array([0, 1, 1]))
    end = native.ChainEnd(
        0.0, 1.0, 1.0, 0.1, 0.9, least.ctypes.data, borders.ctypes.data, lines.ctypes.data,
        places.ctypes.data, 2,
    )  # fmt: skip
    chain = native.Chain(
        passes, most, VOCAB, 1, 0, 0, 0, ids.ctypes.data, windows.ctypes.data,
        ctypes.addressof(end), reads.ctypes.data, tokens.ctypes.data, shares.ctypes.data,
        seconds.ctypes.data,
    )  # fmt: skip
    at = ctypes.addressof(given), ctypes.addressof(chain)
    assert not library.pl_run_chain(ctypes.addressof(steps), len(steps), *at, 2)
    assert chain.made == passes and (seconds > 0).all()
    assert reads.tolist() == [0, 1, *tokens[:-1, 0]]
    assert (shares[:, 0] > 0).all() and (tokens < VOCAB).all()
    least[:] = np.inf
    assert not library.pl_run_chain(ctypes.addressof(steps), len(steps), *at, 2)
    assert chain.made == 1


def drafts(library: ctypes.CDLL, native: Any, rng: np.random.Generator) -> None:
    """Medusa's, Chimera's and EAGLE's, of programs that give their first numbers back; all memory ends where
    it has to."""
    held: list[np.ndarray] = []

    def keep(numbers: np.ndarray) -> int:
        held.append(exact(numbers))
        return int(held[-1].ctypes.data)

    def part(rows: int, reads: int, gives: int) -> Any:
        value = native.Operand(table=-1, stride=reads, period=reads, each=1)
        steps = (native.Step * 2)(
            native.Step(op=1, count=reads, out_stride=reads),
            native.Step(op=2, count=gives, input=value, out_buffer=-1, out_stride=gives),
        )
        held.append(steps)  # type: ignore[arg-type]
        arena = keep(np.zeros((rows, reads), np.float32))
        given, out = (keep(np.zeros((rows, size), np.float32)) for size in (reads, gives))
        return native.Part(ctypes.addressof(steps), 2, arena, given, out)

    def guesses(budget: int) -> Any:
        found, memory = room_for_tree(native, budget)
        held.append(memory)  # type: ignore[arg-type]
        heard = 2  # fewer than there are levels
        noise = keep(np.zeros((heard, OUTPUTS), np.float32))
        ids = keep(np.arange(OUTPUTS)[::-1])
        return native.Guesses(OUTPUTS, 3, budget, heard, ids, noise, found)

    hidden, heads, beam, fresh = OUTPUTS, 3, 2, 3
    state = keep(rng.standard_normal(hidden, dtype=np.float32))
    medusa = native.Medusa(
        part(1, hidden, hidden), part(heads, hidden, OUTPUTS), 1, hidden, state, guesses(5)
    )
    assert not library.pl_draft_medusa(ctypes.addressof(medusa), 2)
    assert medusa.guesses.found.nodes == 3  # as many as one head guesses
    levels = (native.Part * heads)(*(part(1 + fresh, 2 * hidden, OUTPUTS) for _ in range(heads)))
    for budget, found in ((1, 1), (4, 4), (30, 3 + 2 * 2 * 3)):
        chimera = native.Chimera(
            green=part(1 + fresh, 2 * hidden, hidden), read=part(fresh, 2 * hidden, 1),
            levels=ctypes.addressof(levels), depth=heads, order=2, hidden=hidden, beam=beam,
            length=4, fresh=fresh, text=keep(np.array([1, 2, 3, 1, 0])), states_stride=hidden,
            states=keep(rng.standard_normal((4 + fresh, hidden), dtype=np.float32)),
            words=keep(rng.standard_normal((OUTPUTS, hidden), dtype=np.float32)),
            words_format=-1, words_count=OUTPUTS, guesses=guesses(budget),
        )  # fmt: skip
        assert not library.pl_draft_chimera(ctypes.addressof(chimera), 2)
        assert chimera.guesses.found.nodes == found
    # As many as one row and then two rows a level guess; a budget is depth, too.
    for depth, budget, found in ((1, 30, 3), (4, 30, 3 + 3 * 2 * 3), (9, 2, 2)):
        eagle = native.Eagle(
            read=part(fresh, 2 * hidden, hidden), grow=part(beam, 2 * hidden, hidden),
            head=part(beam, hidden, OUTPUTS), width=hidden, hidden=hidden, depth=depth, beam=beam,
            length=4, fresh=fresh, text=keep(np.array([1, 2, 0])), states_stride=hidden,
            states=keep(rng.standard_normal((4 + fresh, hidden), dtype=np.float32)),
            root=keep(np.zeros(hidden, np.float32)),
            words=keep(rng.standard_normal((OUTPUTS, hidden), dtype=np.float32)),
            words_format=-1, words_count=OUTPUTS, guesses=guesses(budget),
        )  # fmt: skip
        assert not library.pl_draft_eagle(ctypes.addressof(eagle), 2)
        assert eagle.guesses.found.nodes == found


def module(path: Path) -> Any:
    """A module by its file: importing the package would bring torch."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    made = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = made
    spec.loader.exec_module(made)
    return made


def main() -> None:
    library = ctypes.CDLL(sys.argv[1])
    signatures = module(Path(sys.argv[2]) / "signatures.py")
    for name, (gives, takes) in signatures.SIGNATURES.items():
        getattr(library, name).restype, getattr(library, name).argtypes = gives, takes
    for tier in library.pl_tiers().decode().split(","):
        assert not library.pl_use_tier(tier.encode())
        rng = np.random.default_rng(0)
        with np.errstate(all="ignore"):
            products(library, rng)
        attention(library, signatures.Attention, rng)
        likeliest(library, rng)
        moves(library, signatures, rng)
        suffixes(library, signatures, rng)
        ngrams(library, signatures, rng)
        chosen_trees(library, signatures, rng)
        one_pass(library, signatures, rng)
        drafts(library, signatures, rng)
        sys.stdout.write(f"{tier} is clean\n")


if __name__ == "__main__":
    main()
