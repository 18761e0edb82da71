"""Settings by trial: which are tried, and which stay."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.planning.settings_search import Settings, Trial, search

TRIED = {("length",): (2, 4, 6), ("window", "guesses"): (3, 7), ("lengthen",): (1,)}
START = {"length": 4, "window": 5, "guesses": 2, "lengthen": 1}


def speed(settings: Settings) -> float:
    """Best at length 6, window 7."""
    return 2 - abs(settings["length"] - 6) / 10 - abs(settings["window"] - 7) / 10


def measured(asked: list[list[Settings]], speed=speed):
    def measure(candidates: Sequence[Settings]) -> list[Trial]:
        asked.append(list(candidates))
        return [Trial(one, speed(one), 1.0) for one in candidates]

    return measure


def test_one_setting_after_the_other_keeps_the_best_value() -> None:
    asked: list[list[Settings]] = []
    steps = list(search(TRIED, START, measured(asked)))
    assert [step.names for step in steps] == [("length",), ("window", "guesses")]
    assert [one["length"] for one in asked[0]] == [2, 4, 6]
    assert all((one["window"], one["guesses"]) == (5, 2) for one in asked[0])
    # As they were, though it is not among those to try; and settings of a key go together.
    assert [(one["window"], one["guesses"]) for one in asked[1]] == [(5, 2), (3, 3), (7, 7)]
    assert all(one["length"] == 6 for one in asked[1])
    assert steps[-1].best.settings == {"length": 6, "window": 7, "guesses": 7, "lengthen": 1}
    assert steps[-1].best in steps[-1].trials


def test_what_is_no_better_leaves_settings_as_they_are() -> None:
    def flat(settings: Settings) -> float:
        return 1.0 + 0.005 * (settings["length"] == 2)

    for step in search(TRIED, START, measured([], flat)):
        assert step.best.settings == START


def test_with_nothing_to_try_nothing_is_measured() -> None:
    asked: list[list[Settings]] = []
    assert list(search({("length",): (4,)}, START, measured(asked))) == []
    assert asked == []
