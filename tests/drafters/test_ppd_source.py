"""PPD's prompt tokens among the sources of `auto`, where their rows say what the test wants."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from tests.drafters.test_ppd import PROMPT, Clairvoyant, Rank, story
from tests.helpers import generate
from tests.prompt_parts import TOY, saved_parts

from paceline.drafters import Host, PpdSettings, make_drafter
from paceline.drafters.costly_sources import CostlySources
from paceline.drafters.ppd_source import PpdSource, RowSources
from paceline.protocols import Drafter
from paceline.records import Path, Round
from paceline.stats import Stats
from paceline.tree import EMPTY, ROOT, Tree

COUNT = 90


class Timed(Clairvoyant):
    """Its passes take ten milliseconds, and a look at its clock ten microseconds."""

    seconds = 0.0

    def clock(self) -> float:
        self.seconds += 1e-5
        return self.seconds

    def score(self, *what: Any) -> dict[int, torch.Tensor]:
        self.seconds += 1e-2
        return super().score(*what)


def made(target: Timed, sources: str = "") -> Drafter:
    parts = saved_parts(target.prompt_tokens, target.epts, vocab=32)
    host = Host(target, TOY, clock=target.clock)
    return make_drafter(f"auto:sources={sources}ppd:parts={parts}", host)


def played(rank: Rank, epts: int = 1, budget: int = 40, sources: str = "") -> list[Round]:
    text = story(COUNT + 4)
    target = Timed(text, 2, epts, rank)
    output, rounds, _ = generate(target, made(target, sources), PROMPT, COUNT, budget=budget)
    assert output == text[len(PROMPT) :][:COUNT]
    assert all(len(round.tree) <= budget for round in rounds)
    return rounds


def virtual(round: Round) -> int:
    return sum(token >= 32 for token in round.tree.tokens)


@pytest.mark.parametrize("epts", [1, 2])
@pytest.mark.parametrize("sources", ["", "anpd+suffix+"])
def test_rows_that_guess_right_are_bought_again(epts: int, sources: str) -> None:
    rounds = played(lambda place, distance: 0, epts, sources=sources)
    stats = Stats()
    for round in rounds:
        stats.add(round)
    own = stats.sources["ppd"]
    assert own.accepted > COUNT / 3 and own.asked > own.rounds / 2
    assert len(rounds) < 0.65 * COUNT


def test_rows_that_guess_wrong_are_bought_on_trial_only() -> None:
    rounds = played(lambda place, distance: 99, sources="anpd+")
    bought = [bool(virtual(round)) for round in rounds]
    assert any(bought), "nobody knows before it is tried"
    assert sum(bought[len(bought) // 2 :]) < len(bought) / 8


@pytest.mark.parametrize("budget", [1, 2, 3, 5])
def test_rows_that_do_not_fit_are_left_out(budget: int) -> None:
    played(lambda place, distance: 0, epts=2, budget=budget)


def test_rows_stand_where_the_accepted_path_is_likeliest_to_end() -> None:
    target = Clairvoyant(story(8), 2, 1, lambda place, distance: 0)
    source = PpdSource(Host(target, TOY), _settings(target))
    # The root .2, node 0 .1, node 1 .7, node 2 .0: after the path 0, 1 or nowhere.
    tree = Tree((5, 6, 7), (ROOT, 0, 1), (0.8, 0.7, 0.0), (1, 1, 1))
    wider = source.add_rows(tree, 9)
    assert wider.tokens == (5, 6, 7, 32, 33, 32, 33)
    assert wider.parents == (ROOT, 0, 1, 1, 3, ROOT, 5)
    assert wider.weights == (0.8, 0.7, 0.0, 0, 0, 0, 0)
    assert wider.sources == (1, 1, 1, 0, 0, 0, 0), "nobody has guessed them"
    assert source.add_rows(tree, 3).tokens == (5, 6, 7, 32, 33)
    assert source.add_rows(tree, 1) == tree
    assert source.add_rows(EMPTY, 4).parents == (ROOT, 0)


def test_rows_are_paid_by_what_the_next_round_brings() -> None:
    """Width and rows of the pass that had them, tokens of the pass after it."""

    class Told(CostlySources):
        heard: ClassVar[list[tuple[object, ...]]] = []

        def asks(self, *_: object) -> bool:
            return not self.heard

        def judge(self, *what: object) -> None:
            self.heard.append(what)

    target = Clairvoyant(story(8), 2, 1, lambda place, distance: 0)
    source = PpdSource(Host(target, TOY), _settings(target))
    rows = RowSources({1: source}, ("anpd", "ppd"), Told(["ppd"]))
    tree, asked = rows.add_to(EMPTY, 0.25, 10)
    assert asked == [1] and len(tree) == 2 and not rows.bought
    rows.judge(Round(0, tree, torch.zeros(3, 32), Path((), (3,))))
    assert not Told.heard and [*rows.bought] == [1]
    guess = Tree((4, 5), (ROOT, 0), (0.5, 0.25), (2, 2))
    rows.judge(Round(0, guess, torch.zeros(3, 32), Path((0,), (4, 9))))
    assert Told.heard == [("ppd", 0.25, 1, 0.75, 3, 2)]
    assert not rows.bought


def _settings(target: Clairvoyant) -> PpdSettings:
    return PpdSettings(parts=str(saved_parts(target.prompt_tokens, target.epts, vocab=32)))
