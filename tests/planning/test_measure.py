"""Measuring a target: what is driven how. How long anything takes is never asserted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from tests.helpers import generate
from tests.tiny_models import new_model, some_prompt, tiny_model

from paceline.drafters import Anpd
from paceline.errors import UsageError
from paceline.planning import measure
from paceline.planning.cost_curve import CostCurve, CostPoint
from paceline.planning.measure import (
    Floor,
    measure_bandwidth,
    measure_curve,
    measure_floor,
)
from paceline.records import Path, TargetInfo
from paceline.targets.causal_lm import CausalLMTarget
from paceline.targets.toy import ToyTarget
from paceline.tree import EMPTY, Tree


class Recording(ToyTarget):
    """A target that notes what it is asked for: ("open", cached), ("score", width), ("commit", 0),
    ("close", 0), ("forget", 0).

    timed: width and cached tokens of every pass but the first of each slot.
    """

    def __init__(self, max_context: int | None = None) -> None:
        super().__init__(max_context=max_context)
        self.calls: list[tuple[str, int]] = []
        self.timed: list[tuple[int, int]] = []
        self.length = 0

    def open(self, context: Sequence[int]) -> int:
        self.length = len(context) - 1
        self.calls.append(("open", self.length))
        return super().open(context)

    def score(
        self, trees: Mapping[int, Tree], prefill: Mapping[int, int] | None = None
    ) -> dict[int, torch.Tensor]:
        ((slot, tree),) = trees.items()
        assert max(tree.depths, default=0) == len(tree)
        if self.max_context is not None:
            assert self.length + 1 + len(tree) <= self.max_context
        self.calls.append(("score", len(tree) + 1))
        if self.calls[-2][0] != "open":
            assert self.pending(slot) == 0
            self.timed.append((len(tree) + 1, self.length))
        return super().score(trees, prefill)

    def commit(self, paths: Mapping[int, Path]) -> None:
        ((_, path),) = paths.items()
        self.length += 1 + len(path.nodes)
        self.calls.append(("commit", 0))
        super().commit(paths)

    def close(self, slot: int) -> None:
        self.calls.append(("close", 0))
        super().close(slot)

    def forget(self) -> None:
        self.calls.append(("forget", 0))
        super().forget()


def llama() -> CausalLMTarget:
    return CausalLMTarget(tiny_model("llama"))


@pytest.mark.parametrize("make", [lambda: ToyTarget(), llama])
def test_a_pass_may_be_repeated_without_a_commit(make: type[ToyTarget]) -> None:
    """What measuring relies on: `score` alone changes nothing that the next `score` sees."""
    target, again = make(), make()
    slots = [one.open([1, 2, 3, 4, 5]) for one in (target, again)]
    for one, slot in zip((target, again), slots):
        one.score({slot: EMPTY})
        one.commit({slot: Path((), (6,))})
    trees = [Tree.chain([7, 8, 9]), EMPTY, Tree.chain(range(10)), Tree.chain([7, 8, 9])]
    rows = [target.score({slots[0]: tree})[slots[0]] for tree in trees]
    torch.testing.assert_close(rows[0], rows[3], rtol=0, atol=0)
    torch.testing.assert_close(rows[3], again.score({slots[1]: trees[3]})[slots[1]])


def test_every_width_is_timed_as_often_at_every_context() -> None:
    heard: list[int] = []
    target = Recording()
    curve = measure_curve(target, [4, 2, 1], [20, 5], repeats=7, on_pass=heard.append)
    assert [(point.width, point.context) for point in curve.points] == [
        *((width, 5) for width in (1, 2, 4)),
        *((width, 20) for width in (1, 2, 4)),
    ]
    assert all(point.milliseconds > 0 for point in curve.points)
    assert heard == 42 * [42]
    # One more of each, the first, is not timed.
    counts = {grid: target.timed.count(grid) for grid in target.timed}
    assert counts == {(width, context): 8 for width in (1, 2, 4) for context in (5, 20)}


def test_contexts_alternate_and_widths_take_turns() -> None:
    target = Recording()
    measure_curve(target, [1, 2, 3, 4, 6, 8], [5, 20], repeats=7)
    assert [length + 1 for kind, length in target.calls if kind == "open"] == [5, 20, 20, 5, 5, 20]
    turns = [width for width, _ in target.timed]
    orders = {tuple(turns[place : place + 6]) for place in range(0, len(turns), 6)}
    assert all(sorted(order) == [1, 2, 3, 4, 6, 8] for order in orders)
    assert len(orders) > 7


def test_only_the_first_pass_of_a_slot_is_committed() -> None:
    target = Recording()
    measure_curve(target, [1, 3], [4], repeats=2)
    kinds = [kind for kind, _ in target.calls]
    assert [place for place, kind in enumerate(kinds) if kind == "commit"] == [
        place + 2 for place, kind in enumerate(kinds) if kind == "open"
    ]
    assert kinds.count("close") == kinds.count("open")
    assert kinds[-1] == "forget"


def test_the_passes_are_the_same_for_everyone() -> None:
    one, other = Recording(), Recording()
    for target in (one, other):
        measure_curve(target, [1, 2, 3, 4], [4, 9], repeats=3)
    assert one.calls == other.calls


@pytest.mark.parametrize(
    ("room", "widths", "contexts"),
    [
        (None, (1, 8, 128), (128, 1024)),
        (2000, (1, 8, 128), (128, 1024)),
        (1152, (1, 8, 128), (128, 1024)),
        (1000, (1, 8, 128), (128, 872)),
        (256, (1, 8, 128), (128,)),
        (129, (1, 8, 128), (1,)),
        (100, (1, 8), (1,)),
        (2, (1,), (1,)),
    ],
)
def test_what_the_model_cannot_hold_is_cut(
    room: int | None, widths: tuple[int, ...], contexts: tuple[int, ...]
) -> None:
    target = Recording(max_context=room)
    curve = measure_curve(target, [8, 128], [128, 1024], repeats=1)
    assert (curve.widths, curve.contexts) == (widths, contexts)


def test_a_model_for_one_token_is_refused() -> None:
    with pytest.raises(UsageError, match="context of 1 is too short"):
        measure_curve(ToyTarget(max_context=1))


@pytest.mark.parametrize(
    "request_", [([0], [1], 1), ([1], [0], 1), ([1], [1], 0), ([1], [], 1), ([-2], [1], 1)]
)
def test_numbers_below_one_are_refused(request_: tuple[list[int], list[int], int]) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        measure_curve(ToyTarget(), *request_)


def test_a_real_model_writes_the_same_after_it_was_measured() -> None:
    prompt = some_prompt(40)
    measured = llama()
    curve = measure_curve(measured, repeats=1)
    # Its context is 256, and the widest pass has 128 rows.
    assert (curve.widths, curve.contexts) == (measure.WIDTHS, (128,))
    expected = generate(llama(), Anpd(), prompt, 20)[0]
    assert generate(measured, Anpd(), prompt, 20)[0] == expected


def test_the_floor_is_the_time_to_read_all_weights() -> None:
    floor = Floor(weight_bytes=3_000_000_000, gb_per_s=30.0)
    assert floor.milliseconds == pytest.approx(100.0)
    assert floor.share(CostCurve((CostPoint(1, 8, 125.0),))) == pytest.approx(0.8)


def test_the_floor_is_that_of_the_weights_that_the_target_tells_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stating(ToyTarget):
        """Says what a pass reads."""

        def describe(self) -> TargetInfo:
            return TargetInfo("Stating", weight_bytes=7)

    monkeypatch.setattr(measure, "measure_bandwidth", lambda device: 3.5)
    assert measure_floor(Stating()) == Floor(7, 3.5)
    assert measure_floor(ToyTarget()) == Floor(0, 3.5)


@pytest.mark.parametrize("spare", [None, 1, 1 << 20])
def test_bandwidth_is_measured_with_whatever_memory_there_is(
    monkeypatch: pytest.MonkeyPatch, spare: int | None
) -> None:
    monkeypatch.setattr(measure, "_BUFFER_BYTES", 1 << 22)
    monkeypatch.setattr(measure, "free_memory", lambda: spare)
    assert measure_bandwidth(torch.device("cpu")) > 0
    floor = measure_floor(llama())
    assert floor.gb_per_s > 0
    assert floor.weight_bytes > 0


def test_bandwidth_needs_no_packed_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    kernels = list(measure._read_kernels(torch.ones(2, 4)))
    assert len(kernels) == 4
    assert [float(kernel()) for kernel in kernels[:3]] == [8.0, 1.0, 8.0]  # type: ignore[arg-type]


def test_every_kernel_reads_the_whole_buffer() -> None:
    matrix = torch.arange(8.0).reshape(2, 4)
    total, largest, product, rows, *packed = [run() for run in measure._read_kernels(matrix)]
    assert (float(total), float(largest), float(product)) == (28.0, 7.0, 140.0)  # type: ignore[arg-type]
    assert rows.tolist() == [6.0, 22.0]  # type: ignore[attr-defined]
    for four in packed:
        assert four.tolist() == [[6.0, 22.0]] * 4  # type: ignore[attr-defined]


@pytest.mark.gpu
def test_on_a_gpu_copies_and_passes_are_waited_for() -> None:
    target = CausalLMTarget(new_model("llama").cuda())
    assert measure_curve(target, [1, 4], [8], repeats=2).widths == (1, 4)
    assert measure_floor(target).gb_per_s > 0
