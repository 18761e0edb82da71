"""`paceline.testing`: what is right passes, and every mistake that was thought of is caught."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from tests.draft_hosts import TOYS
from tests.helpers import Hostile, RandomTrees
from tests.outside_methods import Stutter

from paceline.protocols import SHADOW_TOKENS, Drafter, Target
from paceline.records import Path, Round, TargetInfo, TextStart
from paceline.targets.toy import ToyTarget
from paceline.testing import check_drafter, check_target
from paceline.tree import SHADOWS, Tree


class ChainsOnly(ToyTarget):
    """Scores no branches, and offers nothing else."""

    capabilities = frozenset()

    def score(
        self, trees: Mapping[int, Tree], prefill: Mapping[int, int] | None = None
    ) -> dict[int, torch.Tensor]:
        for tree in trees.values():
            assert tree.parents == tuple(range(-1, len(tree) - 1)), "this is no chain"
        return super().score(trees, prefill)


class Rounding(ToyTarget):
    """As models round: rows differ a little from pass to pass."""

    def score(
        self, trees: Mapping[int, Tree], prefill: Mapping[int, int] | None = None
    ) -> dict[int, torch.Tensor]:
        scores = super().score(trees, prefill)
        return {slot: rows + 1e-4 * (self.passes % 3) for slot, rows in scores.items()}


GOOD: dict[str, Callable[[], Target]] = {
    # The hidden states of the one do not say what it cannot say; the other has too small a context.
    **{name: make for name, make in TOYS.items() if name not in ("mumbling", "short")},
    "long memory": lambda: ToyTarget(vocab_size=40, order=1000),
    "small context": lambda: ToyTarget(max_context=60),
    "chains only": ChainsOnly,
}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("seed", [0, 1])
def test_toys_keep_the_contract_of_targets(name: str, seed: int) -> None:
    check_target(GOOD[name], seed=seed)


def test_rows_may_differ_by_the_tolerance_and_no_more() -> None:
    check_target(Rounding, tolerance=1e-3)
    with pytest.raises(AssertionError, match=r"row of .* differ by 0\.000[12]"):
        check_target(Rounding, tolerance=5e-5)


# ---- targets with one mistake each ----


class Toy(ToyTarget):
    """Remembers far enough back that every mistake in its cache shows."""

    def __init__(self, **settings: int) -> None:
        super().__init__(**{"order": 9, **settings})


class OneTooMany(Toy):
    def commit(self, paths: Mapping[int, Path]) -> None:
        super().commit(paths)
        for key in paths:
            self._slots[key].cached += self._slots[key].tree.tokens[-1:]


class OneTooFew(Toy):
    def commit(self, paths: Mapping[int, Path]) -> None:
        super().commit(
            {
                key: Path(path.nodes[:-1], path.tokens[-len(path.nodes[:-1]) - 1 :])
                for key, path in paths.items()
            }
        )


class KeepsFirstNodes(Toy):
    """As many nodes as were accepted, but the first ones of the tree."""

    def commit(self, paths: Mapping[int, Path]) -> None:
        super().commit(
            {key: Path(tuple(range(len(path.nodes))), path.tokens) for key, path in paths.items()}
        )


class RootStaysPending(Toy):
    def commit(self, paths: Mapping[int, Path]) -> None:
        super().commit(paths)
        for key in paths:
            slot = self._slots[key]
            slot.pending = [*slot.cached[-1:], *slot.pending]
            del slot.cached[-1:]


class LeaksNeighbour(Toy):
    def score(
        self, trees: Mapping[int, Tree], prefill: Mapping[int, int] | None = None
    ) -> dict[int, torch.Tensor]:
        scores = super().score(trees, prefill)
        if len(trees) > 2:
            first, last = min(trees), max(trees)
            context = [*self._slots[first].cached, *self._slots[last].pending]
            scores[last][0] = self._row(tuple(context[-9:]))
        return scores


class IgnoresPrefillLimit(Toy):
    def score(
        self, trees: Mapping[int, Tree], prefill: Mapping[int, int] | None = None
    ) -> dict[int, torch.Tensor]:
        return super().score(trees, dict.fromkeys(prefill or {}, 1 << 30))


class NeverReads(Toy):
    def score(
        self, trees: Mapping[int, Tree], prefill: Mapping[int, int] | None = None
    ) -> dict[int, torch.Tensor]:
        return super().score(trees)


class ReadsEverybody(Toy):
    def score(
        self, trees: Mapping[int, Tree], prefill: Mapping[int, int] | None = None
    ) -> dict[int, torch.Tensor]:
        others = {key: 1 for key in self._slots if key not in trees}
        return super().score(trees, {**others, **(prefill or {})})


class SeesSiblings(Toy):
    """Nodes see all nodes before them."""

    def score(
        self, trees: Mapping[int, Tree], prefill: Mapping[int, int] | None = None
    ) -> dict[int, torch.Tensor]:
        return super().score({k: Tree.chain(tree.tokens) for k, tree in trees.items()}, prefill)


class NoRowOfTheRoot(Toy):
    def score(
        self, trees: Mapping[int, Tree], prefill: Mapping[int, int] | None = None
    ) -> dict[int, torch.Tensor]:
        scores = super().score(trees, prefill)
        return {key: rows[1:] if len(rows) > 1 else rows for key, rows in scores.items()}


class ScoresTooMuch(Toy):
    def score(
        self, trees: Mapping[int, Tree], prefill: Mapping[int, int] | None = None
    ) -> dict[int, torch.Tensor]:
        rows = torch.zeros(1, self.vocab_size)
        return {**dict.fromkeys(prefill or {}, rows), **super().score(trees, prefill)}


class ReusesTooMuch(Toy):
    """Takes the beginning of any known text for this one's."""

    def open(self, context: Sequence[int]) -> int:
        slot = super().open(context)
        state = self._slots[slot]
        if 0 < len(state.cached) < len(context) - 1 and self._kept:
            state.cached.append((context[len(state.cached)] + 1) % self.vocab_size)
            del state.pending[0]
        return slot


class NeverForgets(Toy):
    def forget(self) -> None:
        pass


class ForgetsOpenTexts(Toy):
    def forget(self) -> None:
        super().forget()
        for slot in self._slots.values():
            slot.cached = slot.cached[-2:]


class SlotTwice(Toy):
    """Closing a slot twice frees it twice."""

    def __init__(self) -> None:
        super().__init__()
        self.free = list(range(50))

    def open(self, context: Sequence[int]) -> int:
        slot = super().open(context)
        own = self.free.pop()
        self._slots[own] = self._slots.pop(slot)
        self._opened = 100 + slot
        return own

    def close(self, slot: int) -> None:
        self.free.append(slot)
        super().close(slot)


class CloseTakesAnother(Toy):
    def close(self, slot: int) -> None:
        if slot in self._slots:
            super().close(slot)
        else:
            del self._slots[min(self._slots)]


class ShortContext(Toy):
    def __init__(self) -> None:
        super().__init__(max_context=40)

    def score(
        self, trees: Mapping[int, Tree], prefill: Mapping[int, int] | None = None
    ) -> dict[int, torch.Tensor]:
        for key, tree in trees.items():
            slot = self._slots[key]
            end = len(slot.cached) + len(slot.pending) + max(tree.depths, default=0)
            if end == 40:
                trees = {**trees, key: Tree((0,) * len(tree), tree.parents)}
                slot.pending = [0]
        return super().score(trees, prefill)


class BlindToShadows(Toy):
    def score(
        self, trees: Mapping[int, Tree], prefill: Mapping[int, int] | None = None
    ) -> dict[int, torch.Tensor]:
        plain = {
            key: replace(
                tree, tokens=tuple(token and token % (SHADOWS - 1) for token in tree.tokens)
            )
            for key, tree in trees.items()
        }
        return super().score(plain, prefill)


class StaleStates(Toy):
    def states(self, slot: int) -> torch.Tensor:
        return super().states(slot).roll(1, 0)


class TooFewStates(Toy):
    def states(self, slot: int) -> torch.Tensor:
        return super().states(slot)[1:]


class OtherHead(Toy):
    def output_head(self, tokens: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        return super().output_head(None if tokens is None else tokens.flip(0))


class VirtualIsReal(Toy):
    def add_virtual_tokens(self, embeddings: torch.Tensor) -> int:
        return self.vocab_size - 1


class VirtualAgain(Toy):
    known = 0

    def add_virtual_tokens(self, embeddings: torch.Tensor) -> int:
        self.known += len(embeddings)
        return self.vocab_size + self.known


class NoInfo(Toy):
    def describe(self) -> TargetInfo:
        return "a toy"  # type: ignore[return-value]


class Telepath(Toy):
    capabilities = frozenset({"telepathy"})


WRONG_ROW = r"row of .* is not that of its text"
BAD_TARGETS: list[tuple[Callable[[], Target], str]] = [
    (OneTooMany, WRONG_ROW),
    (OneTooFew, WRONG_ROW),
    (KeepsFirstNodes, WRONG_ROW),
    (RootStaysPending, "after a commit 1 tokens are pending in front of the root"),
    (LeaksNeighbour, WRONG_ROW),
    (IgnoresPrefillLimit, r"\d+ of \d+ pending tokens were read, where at most \d+ were allowed"),
    (NeverReads, r"0 of \d+ pending tokens were read, where"),
    (ReadsEverybody, r"a pass without slot \d+ changed its pending tokens from \d+ to \d+"),
    (SeesSiblings, r"row of node \d+ of \(.*\) is not that of its text"),
    (NoRowOfTheRoot, r"the logits of a tree of 3 nodes are \(3, 16\), not \(4, 16\)"),
    (ScoresTooMuch, r"score was given trees of the slots \[.*\] and returned \["),
    (ReusesTooMuch, WRONG_ROW),
    (NeverForgets, "forget kept something"),
    (ForgetsOpenTexts, WRONG_ROW),
    (SlotTwice, r"open returned slot \d+, which another text has"),
    (ShortContext, WRONG_ROW),
    (BlindToShadows, WRONG_ROW),
    (StaleStates, r"the output head maps state \d+ to token \d+, which is not the likeliest"),
    (TooFewStates, r"\d+ states of a text of \d+ tokens: all but the root must have one"),
    (OtherHead, r"output_head\(tokens\) is not that part of output_head\(\)"),
    (VirtualIsReal, "the first virtual token is 15, an id of the vocabulary"),
    (VirtualAgain, r"known embeddings got another id, \d+, not \d+"),
    (NoInfo, "describe returned 'a toy', not a TargetInfo"),
    (Telepath, "there is no capability telepathy"),
]


@pytest.mark.parametrize(("make", "said"), BAD_TARGETS)
def test_a_target_with_a_mistake_is_caught(make: Callable[[], Target], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_target(make)


def test_a_target_that_closes_another_text_in_place_of_one_closed_already_is_caught() -> None:
    """What breaks is that other text: the target itself no longer knows it."""
    with pytest.raises(KeyError):
        check_target(CloseTakesAnother)


# ---- drafters with one mistake each ----


class TooMany(Hostile):
    def propose(self, budget: int) -> Tree:
        return Tree.chain([1] * 3)


class NeedsRoom(Hostile):
    def propose(self, budget: int) -> Tree:
        return Tree.chain([self.text[-1 // budget]])


class UnknownTokens(RandomTrees):
    def __init__(self) -> None:
        super().__init__(beyond=1)


class UnaskedShadows(Hostile):
    def propose(self, budget: int) -> Tree:
        return Tree.chain([SHADOWS + 1] * min(1, max(0, budget)))


class ChangesContext(Stutter):
    def start(self, text: TextStart) -> None:
        super().start(text)
        text.context.append(3)  # type: ignore[attr-defined]


class ChangesContextLater(Hostile):
    def start(self, text: TextStart) -> None:
        self.own = text.context

    def propose(self, budget: int) -> Tree:
        return Tree()

    def observe(self, round: Round) -> None:
        self.own[0] = 7  # type: ignore[index]


class ChangesReferences(Stutter):
    def start(self, text: TextStart) -> None:
        super().start(text)
        for reference in text.references:
            reference.clear()  # type: ignore[attr-defined]


class ChangesLogits(Stutter):
    def observe(self, round: Round) -> None:
        super().observe(round)
        round.logits[0, 0] += 1


class NoResume(Stutter):
    def resume(self, text: TextStart) -> None:
        raise RuntimeError("nobody told me")


class OneText(Stutter):
    """Cannot be used for a second text."""

    used = False

    def start(self, text: TextStart) -> None:
        assert not self.used, "one text only"
        self.used = True
        super().start(text)

    def resume(self, text: TextStart) -> None:
        super().start(text)


class StopFails(Stutter):
    def stop(self) -> None:
        raise ValueError("there is nothing to stop")


class OneTokenIsTooShort(Stutter):
    def start(self, text: TextStart) -> None:
        self.last = text.context[-2]


BAD_DRAFTERS: list[tuple[Callable[[], Drafter], str]] = [
    (TooMany, r"3 nodes were proposed with a budget of 0"),
    (NeedsRoom, "with a budget of 0: propose raised ZeroDivisionError"),
    (UnknownTokens, "16 is not a token of the vocabulary, a shadow, a virtual token that"),
    (UnaskedShadows, f"{SHADOWS + 1} is not a token of the vocabulary, a shadow"),
    (ChangesContext, "start changed the text that it was given: work on a copy"),
    (ChangesContextLater, r"at temperature 0\.0 .*: the drafter changed the text: work on a copy"),
    (ChangesReferences, "with references: start changed the text that it was given"),
    (ChangesLogits, "observe changed the logits of its round: work on a copy"),
    (NoResume, "after tokens were taken back: resume raised RuntimeError: nobody told me"),
    (OneText, "with one text after the other: start raised AssertionError: one text only"),
    (StopFails, "stop raised ValueError: there is nothing to stop"),
    (OneTokenIsTooShort, "start raised IndexError"),
]


@pytest.mark.parametrize(("make", "said"), BAD_DRAFTERS)
def test_a_drafter_with_a_mistake_is_caught(make: Callable[[], Drafter], said: str) -> None:
    with pytest.raises(AssertionError, match=said) as caught:
        check_drafter(make)
    assert re.match(r"(at|with|among|after) ", str(caught.value))


class Shadowing(UnaskedShadows):
    requires = frozenset({SHADOW_TOKENS})


@pytest.mark.parametrize("make", [Stutter, RandomTrees, Shadowing])
def test_drafters_that_guess_badly_are_drafters(make: Callable[[], Drafter]) -> None:
    check_drafter(make)


def test_drafters_may_be_checked_on_a_target_of_their_own() -> None:
    check_drafter(lambda: RandomTrees(vocab_size=40), lambda: ToyTarget(vocab_size=40, seed=3))
    check_drafter(Stutter, ChainsOnly)
    with pytest.raises(AssertionError, match="is not a token of the vocabulary"):
        check_drafter(lambda: RandomTrees(vocab_size=40), ToyTarget)
