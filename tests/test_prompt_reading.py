"""How the prompts of texts that join a batch are read beside the texts that are written."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from paceline.drafters.plain import Plain
from paceline.generation import Generation
from paceline.loop import Batch, FixedBudget
from paceline.prompt_reading import begin_alike
from paceline.stopping import Stopping
from paceline.targets.toy import ToyTarget
from paceline.tree import Tree
from tests.draft_hosts import Ticking

DRAW = random.Random(1)
SYSTEM = DRAW.choices(range(16), k=40)
BESIDE = FixedBudget(0).prefill(1, 1, 1000)


class PiecesToy(ToyTarget):
    """Keeps what was read of which slots, pass by pass."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[dict[int, int]] = []

    def score(
        self, trees: Mapping[int, Tree], prefill: Mapping[int, int] | None = None
    ) -> dict[int, torch.Tensor]:
        self.pieces.append(dict(prefill or {}))
        return super().score(trees, prefill)


def text(tokens: list[int], most: int = 300) -> Generation:
    return Generation(tokens, Plain(), Stopping(most))


def prompt(own: int) -> list[int]:
    """It begins as all do, and goes on for so many tokens."""
    return [*SYSTEM, *DRAW.choices(range(16), k=own)]


def test_nobody_waits_for_more_of_a_prompt_than_what_is_common() -> None:
    target = PiecesToy()
    batch = Batch(target, FixedBudget(0))
    batch.add(text([3, 1, 4]))
    batch.step()
    others = [text(prompt(own), most=1) for own in (300, 50, 50, 50)]
    for other in others:
        batch.add(other)
    while not all(other.finished for other in others):
        batch.step()
    assert {other.reused for other in others[1:]} == {BESIDE}, (
        "what was read of it when they parted"
    )
    # The last of the first prompt and the first of the second are read in one pass.
    assert any(len(pieces) == 2 for pieces in target.pieces)
    read = sum(sum(pieces.values()) for pieces in target.pieces)
    assert read <= len(SYSTEM) * 4 - 3 * BESIDE + 300 + 3 * 50


def test_a_text_that_cannot_be_opened_again_reads_its_prompt_itself() -> None:
    class Full(PiecesToy):
        opened = 0

        def open(self, context: Sequence[int]) -> int:
            self.opened += 1
            if self.opened > 3:
                raise torch.OutOfMemoryError
            return super().open(context)

    target = Full()
    batch = Batch(target, FixedBudget(0))
    texts = [text([3, 1, 4], most=20), text(prompt(300), most=5), text(prompt(300), most=5)]
    batch.add(texts[0])
    batch.step()
    for each in texts[1:]:
        batch.add(each)
    while batch:
        batch.step()
    assert target.opened > 3 and all(each.error is None for each in texts)
    for each in texts:
        assert each.output == alone(each)


def alone(other: Generation) -> list[int]:
    one = text(list(other.prompt), most=len(other.output))
    batch = Batch(ToyTarget(), FixedBudget(0))
    batch.add(one)
    while batch:
        batch.step()
    return one.output


def test_the_first_round_after_a_prompt_says_that_its_time_holds_the_prompts() -> None:
    batch = Batch(ToyTarget(), FixedBudget(0))
    batch.add(text([3, 1, 4]))
    batch.step()
    key = batch.add(text(prompt(300)))
    rounds = [round for _ in range(20) for round in batch.step()]
    first, second, *_ = (round for round in rounds if round.key == key)
    assert first.first and first.prefill and not second.prefill
    beside = [round.prefill for round in rounds if round.key != key]
    assert beside == sorted(beside, reverse=True) and {*beside} == {True, False}
    batch.close()


def test_a_text_pays_for_the_prompt_that_is_read_with_its_tree() -> None:
    batch = Batch(ToyTarget(), FixedBudget(0), Ticking(1e-3))
    for tokens in ([3], [1, 4, 1, 5]):
        batch.add(text(tokens))
    short, long = batch.step()
    assert long.seconds.target == pytest.approx(4 * short.seconds.target)
    batch.close()


def test_prompts_that_have_parted_are_read_together() -> None:
    """They do not wait for one another, prompt by prompt, for the template that they share."""
    target = PiecesToy()
    batch = Batch(target, FixedBudget(0))
    texts = [text(prompt(100), most=1) for _ in range(4)]
    for each in texts:
        batch.add(each)
    while batch:
        batch.step()
    assert all(each.finished for each in texts)
    assert target.passes == 2, "one for the first, one for all the others"


class Watched(list[int]):
    """Counts the tokens that are taken out of it."""

    taken = 0

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        self.taken += len(found) if isinstance(place, slice) else 1
        return found


def test_prompts_that_part_after_a_long_prefix_are_not_compared_from_the_start() -> None:
    system = DRAW.choices(range(16), k=4000)
    one, two, same = ([*system, *own] for own in ([1] * 50, [2] * 50, [1] * 50))
    watched = Watched(one)
    assert not begin_alike(two, watched, 4016) and not begin_alike(watched, two, 4016)
    assert watched.taken < 100
    assert begin_alike(same, one, 4016) and begin_alike(two, one, 4000)
    assert not begin_alike(same, one, 4050), "the last token is a root"
    early = [(system[0] + 1) % 16, *system[1:], *[1] * 50]
    assert not begin_alike(early, one, 4016)
