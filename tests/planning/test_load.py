"""What plans know of load: how many texts are written, and what is read beside them."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from tests.planning.replay import Device, Scripted, replay
from tests.planning.test_cost_curve import CLIFF, curve_of

from paceline.bench.trial import Forced
from paceline.loop import Generation, decode
from paceline.planning.cost_curve import CostCurve, CostPoint
from paceline.planning.gate import TRIAL, Gate, Gates, TrialBudget
from paceline.planning.pass_costs import PassCosts
from paceline.planning.planner import TreePlanner
from paceline.planning.running_time import DraftingTime
from paceline.records import Path, Round, Seconds, SourceRound
from paceline.stopping import Stopping
from paceline.tree import EMPTY, Tree

STORY = random.Random(0).sample(range(10**5), 400)


def loaded(rows: int) -> float:
    """Milliseconds; a row more is nearly free beside few, and costs as much as a text beside many."""
    return 10.0 + 0.2 * min(rows, 8) + 2.0 * max(0, rows - 8)


CURVE = CostCurve(tuple(CostPoint(rows, 0, loaded(rows)) for rows in range(1, 65)))


@pytest.mark.parametrize("texts", [1, 2, 4, 8, 16])
def test_at_no_load_it_is_slower_than_plain_decoding(texts: int) -> None:
    """Every other guess is right, and asking takes a millisecond and a half."""

    def spent(sizing: TreePlanner | int, asks: Callable[[int], int]) -> tuple[float, int]:
        device = Device(loaded)
        drafters = [
            Scripted(STORY, asks, length=4, device=device, milliseconds=1.5 if sizing else 0.0)
            for _ in range(texts)
        ]
        replay(device, drafters, STORY, sizing)
        return device.spent, sum(drafter.asked for drafter in drafters)

    plain, _ = spent(0, lambda place: 0)
    planned, asked = spent(TreePlanner(CURVE), lambda place: place % 2)
    assert planned < 1.03 * plain
    if texts == 1:
        assert planned < 0.9 * plain
    if texts == 16:
        assert asked < 0.2 * texts * len(STORY)


def test_what_loses_beside_others_goes_on_alone() -> None:
    trials = TrialBudget()
    method = Gates(trials)
    text = Gates(trials, method)
    for _ in range(100):
        text.at(16).judge(-0.5, -0.5)
        text.at(1).judge(0.5, 0.5)
    assert not text.at(16).asks(1.0) and not text.at(31).asks(1.0)
    assert text.at(1).asks(1.0)
    assert not Gates(trials, method).at(16).is_open and Gates(trials, method).at(1).is_open


def test_what_loses_beside_few_is_not_tried_beside_many() -> None:
    method = Gates(TrialBudget())
    for _ in range(100):
        method.at(4).judge(-0.5, -0.5)
    assert not method.at(16).is_open
    assert not Gates(TrialBudget(), method).at(16).is_open
    assert method.at(1).is_open, "it may gain where there are fewer"


def test_what_gains_beside_few_is_tried_beside_many() -> None:
    method = Gates(TrialBudget())
    for _ in range(100):
        method.at(1).judge(0.5, 0.5)
    gate = Gates(TrialBudget(), method).at(16)
    assert gate.is_open
    for _ in range(3 * TRIAL):
        gate.judge(-0.5, -0.5)
    assert not gate.is_open


def test_drafting_is_timed_though_some_texts_rest() -> None:
    time = DraftingTime()
    time.add(8.0, asked=2, resting=6)
    assert time.price == 0.0  # what resting takes is not known yet
    time.add(1.6, asked=0, resting=16)
    for asked in (1, 5, 15):
        time.add(0.1 * (16 - asked) + 0.7 * asked, asked, 16 - asked)
    assert time.price == pytest.approx(0.6)


def test_a_short_draft_does_not_pay_for_earlier_long_ones() -> None:
    time = DraftingTime()
    time.add(0.1, asked=0, resting=1)
    for _ in range(8):
        time.add(50.1, asked=1, resting=0)
    assert time.price == pytest.approx(50.0)
    assert time.price_of(3.1, asked=1, resting=0) == pytest.approx(3.0)
    assert time.price_of(3.2, asked=1, resting=1) == pytest.approx(3.0)
    assert time.price_of(900.0, asked=1, resting=0) == pytest.approx(100.0), "an outlier"
    assert time.price_of(0.1, asked=0, resting=1) == 0.0


def test_a_text_is_planned_beside_one_that_has_its_own_budget() -> None:
    """Without a curve, plain passes are looked at first; with another's nodes none is plain."""
    device, planner = Device(loaded), TreePlanner()
    drafters = [Scripted(STORY, lambda place: 1, length=4), Scripted(STORY, lambda place: 3)]
    generations = [
        Generation(
            [1], drafter, Stopping(100), Forced(prompt_tokens=1, recorded=STORY), budget=budget
        )
        for drafter, budget in zip(drafters, (4, None), strict=True)
    ]
    rounds = list(decode(device, generations, planner, device.clock))
    assert len([round for round in rounds if round.key == 1]) < 40


def test_one_text_has_its_share_of_a_pass_and_pays_for_its_rows() -> None:
    curve, shared = curve_of(CLIFF), curve_of(CLIFF).shared_by(4)
    assert curve.shared_by(1) == curve
    assert shared.cost(1) == CLIFF[1] / 4
    assert shared.cost(8) - shared.cost(1) == pytest.approx(CLIFF[8] - CLIFF[1])


def test_rows_are_as_costly_as_beside_the_prompts_that_are_read() -> None:
    costs = PassCosts(CURVE)
    assert costs.of(1, beside=16) == costs.of(1)
    assert costs.of(3, beside=16) - costs.of(1) == pytest.approx(loaded(19) - loaded(17))
    assert costs.upto(4, beside=16) == pytest.approx([costs.of(n, 16) for n in range(1, 5)])


def test_texts_that_wait_get_as_much_time_as_those_that_are_written() -> None:
    def read(writing: int, waiting: int) -> int:
        planner = TreePlanner(CURVE)
        for key in range(writing):
            planner.add(key, Scripted(STORY, lambda place: 4))
        planner.plan(dict.fromkeys(range(writing), lambda budget: EMPTY))
        return planner.prefill(writing, waiting, 10_000)

    def share(writing: int, waiting: int) -> float:
        costs = PassCosts(CURVE, writing)
        return costs.of(1 + read(writing, waiting)) / costs.of(1)

    assert read(1, 1) < read(1, 8) < read(1, 15), "one text does not hold up fifteen"
    assert share(1, 15) <= 16
    assert share(4, 12) <= 5
    assert read(4, 1) == read(4, 12), "a pass may always take a few times as long"
    assert TreePlanner(CURVE).prefill(1, 15, 20) == 20


def test_trees_shrink_while_prompts_are_read() -> None:
    planner = TreePlanner(CURVE)
    planner.add(0, Scripted(STORY, lambda place: 4))

    def planned(ahead: int = 0) -> int:
        tree = Tree.chain([1, 2, 3, 4])
        chain = Tree(tree.tokens, tree.parents, (0.4, 0.2, 0.1, 0.05))
        return len(planner.plan({0: lambda budget: chain}, ahead)[0])

    alone = planned()
    planner.prefill(1, 1, 512)
    beside = planned()
    assert planned() == alone > beside, "and grow again when they have been read"
    assert planned(512) == beside, "its own prompt counts like another's"


def test_a_tree_beside_its_own_prompt_is_judged_by_what_it_costs_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    saved = list[float]()
    monkeypatch.setattr(Gate, "judge", lambda gate, own, expected: saved.append(own))
    tree, path = Tree((7, 8), (-1, 0), (0.9, 0.8)), Path((0, 1), (7, 8, 9))
    for ahead in (0, 16):
        planner = TreePlanner(CURVE)
        planner.add(0, Scripted(STORY, lambda place: 2))
        assert len(planner.plan({0: lambda budget: tree}, ahead)[0]) == 2
        planner.observe([Round(0, tree, torch.empty(3, 0), path, True, True)])
    more = (loaded(19) - loaded(17) - (loaded(3) - loaded(1))) / loaded(1)
    assert saved[0] - saved[1] == pytest.approx(more)


def test_guesses_are_made_though_prompts_are_read_in_every_pass() -> None:
    """What a pass takes is unknown then, with a millisecond or two for drafting."""
    planner, trees = TreePlanner(), []
    planner.add(0, Scripted(STORY, lambda place: 1))
    for number in range(60):
        tree = planner.plan({0: lambda budget: Tree((7,), (-1,), (0.8,))})[0]
        planner.prefill(1, 1, 512)
        path = Path((0,), (7, 9)) if len(tree) else Path((), (7,))
        spent = Seconds(draft=2e-3 if len(tree) else 1e-4, target=20e-3)
        rows = torch.empty(1 + len(tree), 0)
        planner.observe([Round(0, tree, rows, path, True, number == 0, spent)])
        trees.append(tree)
    assert [len(tree) for tree in trees] == [0, 0, 0, *[1] * 57]


def test_what_one_texts_source_takes_is_not_charged_to_the_others() -> None:
    """Of four texts, one asks a source that decides for itself, for eight milliseconds."""
    planner, tree = TreePlanner(CURVE), Tree.chain([7])
    for key in range(4):
        planner.add(key, Scripted(STORY, lambda place: 1))
    lookup, asked = SourceRound("anpd", True, 1, 5e-4), SourceRound("eagle", True, 1, 8e-3, True)
    spent = Seconds(draft=(8e-3 + 4 * 5e-4) / 4, target=5e-3)
    rows = torch.empty(2, 0)
    for number in range(12):
        planner.plan(dict.fromkeys(range(4), lambda budget: tree))
        rounds = [
            Round(key, tree, rows, Path((0,), (7, 9)), number == 0, number == 0, spent)
            for key in range(4)
        ]
        rounds[0] = rounds[0].with_(sources=(lookup, asked))
        planner.observe(rounds)
    assert planner._drafting.price == pytest.approx(0.5)
