"""What is reported of runs whose every figure is known beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean

import pytest

from paceline.bench.entries import Difference, Entry, LeftOut
from paceline.bench.metrics import LOOPING, Group, Summary, summarise
from paceline.options import Options
from paceline.prompts import PromptRecord
from paceline.session import Session
from paceline.stats import Stats
from tests.bench.conftest import NameMethods
from tests.bench.rig import (
    READ,
    Script,
    Scripted,
    clocked_session,
    comparison,
    cost,
    lines_of,
)
from tests.helpers import Oracle

TOKENS = 24
GREEDY = Options(max_new_tokens=TOKENS, ignore_eos=True, budget=8)
# 24 tokens in 9 rounds: three times 3 and 1 and 4.
SOME: Script = [(4, 2), (0, 0), (3, 3)]
# 24 tokens in 12 rounds.
FEW: Script = [(7, 1)]
PROMPTS = [
    PromptRecord("edit", ("change this line",), task="edits"),
    PromptRecord("question", ("why is the sky blue, and since when?",), task="chat"),
    PromptRecord("another edit", ("change that line, too",), task="edits"),
]
SCRIPTS = {"edits": SOME, "chat": FEW}


def seconds_of(prompt_tokens: int, widths: Sequence[int]) -> tuple[float, float]:
    """Seconds of the first pass, and of those after it."""
    first, *rest = map(cost, widths)
    return (prompt_tokens - 1) * READ + first, sum(rest)


PLAIN = [1] * TOKENS
WIDTHS = {"edits": [5, 1, 4] * 3, "chat": [*[8] * 8, 8, 6, 4, 2]}
"""Of the passes of each script: no guess goes beyond the last token but one."""


def scripted(name_methods: NameMethods) -> tuple[Session, dict[str, int]]:
    """A session on which "scripted" guesses by the scripts of the tasks; prompts' lengths."""
    session, _ = clocked_session()
    stories = {}
    lengths = {}
    for prompt in PROMPTS:
        ids = session.encode([{"role": "user", "content": prompt.turns[0]}])
        tokens = session.generate(ids, max_new_tokens=TOKENS, ignore_eos=True).tokens
        stories[tuple(ids)] = (tokens, SCRIPTS[prompt.task])
        lengths[prompt.id] = len(ids)
    name_methods({"scripted": lambda: Scripted(stories)})
    return session, lengths


def check(group: Group, lengths: dict[str, int], texts: Sequence[PromptRecord]) -> None:
    """Every figure of "scripted" on these texts."""
    found, plain = group.methods["scripted"], group.methods["plain"]
    own = [seconds_of(lengths[text.id], WIDTHS[text.task]) for text in texts]
    base = [seconds_of(lengths[text.id], PLAIN) for text in texts]
    prefill, after = (sum(part) for part in zip(*own, strict=True))
    plain_prefill, plain_after = (sum(part) for part in zip(*base, strict=True))
    tokens = TOKENS * len(texts)
    assert (found.texts, found.tokens, plain.tokens) == (len(texts), tokens, tokens)
    assert found.seconds == prefill + after
    assert plain.seconds == plain_prefill + plain_after
    assert found.tokens_per_second == tokens / (prefill + after)
    assert found.speedup == pytest.approx((plain_prefill + plain_after) / (prefill + after))
    assert found.decode_speedup == pytest.approx(plain_after / after)
    assert found.mean_of_ratios == pytest.approx(
        mean(1 / sum(each) for each in own) / mean(1 / sum(each) for each in base)
    )
    assert list(found.speedups.values()) == pytest.approx(
        [sum(slow) / sum(fast) for slow, fast in zip(base, own, strict=True)]
    )
    assert (plain.speedup, plain.interval) == (1.0, (1.0, 1.0))
    # All of the time goes into passes.
    assert (found.stats.prefill_seconds, found.stats.target_seconds) == (prefill, after)
    assert (found.stats.draft_seconds, found.stats.commit_seconds) == (0.0, 0.0)
    low, high = found.interval
    assert min(found.speedups.values()) <= low <= found.speedup <= high
    assert high <= max(found.speedups.values())
    assert found.identical and not found.failures


@pytest.mark.parametrize("repeats", [1, 3])
def test_speed_is_what_it_was_made_to_be(name_methods: NameMethods, repeats: int) -> None:
    session, lengths = scripted(name_methods)
    entries, _ = lines_of(comparison(session, ["scripted"], PROMPTS, GREEDY, repeats))
    found = summarise(entries)
    check(found.overall, lengths, PROMPTS)
    assert [group.name for group in found.groups] == ["suite/edits", "suite/chat"]
    check(found.groups[0], lengths, [PROMPTS[0], PROMPTS[2]])
    check(found.groups[1], lengths, [PROMPTS[1]])
    assert (found.overall.looping, found.calm) == (0, None)


def test_acceptance_is_what_it_was_made_to_be(name_methods: NameMethods) -> None:
    session, _ = scripted(name_methods)
    entries, _ = lines_of(comparison(session, ["scripted"], PROMPTS, GREEDY))
    edits, chat = (group.methods["scripted"].stats for group in summarise(entries).groups)
    assert (edits.rounds, edits.tokens) == (2 * 9, 2 * 24)
    assert edits.mean_acceptance_length == 24 / 9
    assert edits.acceptance_histogram == {3: 6, 1: 6, 4: 6}
    assert edits.depth_histogram == {4: 6, 0: 6, 3: 6}
    assert edits.draft_acceptance_rate == (2 + 3) / (4 + 3)
    # Of the rounds that guessed so far: 12 and 12 and 12 and 6.
    assert edits.acceptance_by_position == [1.0, 1.0, 0.5, 0.0]
    assert edits.triggers / edits.rounds == 2 / 3
    assert (chat.rounds, chat.tokens) == (12, 24)
    assert chat.mean_acceptance_length == 2.0
    # The last rounds guess no further than the text goes: 5, 3 and 1.
    assert chat.depth_histogram == {7: 9, 5: 1, 3: 1, 1: 1}
    assert chat.acceptance_by_position == [1.0, 0, 0, 0, 0, 0, 0]
    assert chat.triggers == chat.rounds
    overall = summarise(entries).overall.methods["scripted"].stats
    assert overall.mean_acceptance_length == 72 / 30
    assert overall.acceptance_by_position[:2] == [1.0, 12 / 23]
    plain = summarise(entries).overall.methods["plain"].stats
    assert (plain.mean_acceptance_length, plain.triggers, plain.drafted) == (1.0, 0, 0)
    assert plain.acceptance_by_position == []


def test_texts_of_one_speed_leave_no_room_for_chance(name_methods: NameMethods) -> None:
    session, _ = scripted(name_methods)
    same = [replace(PROMPTS[0], id=str(number)) for number in range(5)]
    entries, _ = lines_of(comparison(session, ["scripted"], same, GREEDY))
    found = summarise(entries).overall.methods["scripted"]
    assert found.interval == (found.speedup, found.speedup)
    assert found.mean_of_ratios == pytest.approx(found.speedup)


def test_a_pause_in_one_trial_does_not_move_the_median(name_methods: NameMethods) -> None:
    session, lengths = scripted(name_methods)
    target = session.target
    trials: list[int] = []

    def on_trial() -> None:
        trials.append(1)
        target.pause = 100.0 if len(trials) == 3 else 0.0  # type: ignore[attr-defined]

    entries, _ = lines_of(comparison(session, ["scripted"], PROMPTS, GREEDY, 3), on_trial)
    assert max(entry.seconds for entry in entries) > 900
    found = summarise(entries).overall.methods
    widths = [WIDTHS[prompt.task] for prompt in PROMPTS]
    expected = [
        sum(seconds_of(length, each)) for length, each in zip(lengths.values(), widths, strict=True)
    ]
    assert found["scripted"].seconds == sum(expected)
    assert found["plain"].seconds == sum(sum(seconds_of(n, PLAIN)) for n in lengths.values())


def test_wrong_guesses_are_a_slow_down(name_methods: NameMethods) -> None:
    session, target = clocked_session()
    prompt = PROMPTS[0]
    ids = session.encode([{"role": "user", "content": prompt.turns[0]}])
    tokens = session.generate(ids, max_new_tokens=TOKENS, ignore_eos=True).tokens
    name_methods({"wrong": lambda: Oracle([*ids, *tokens], target.vocab_size, wrong=True)})
    entries, _ = lines_of(comparison(session, ["wrong"], [prompt], GREEDY.with_(budget=4)))
    found = summarise(entries).overall.methods["wrong"]
    slow, plain = (sum(seconds_of(len(ids), each)) for each in ([5] * 20 + [4, 3, 2, 1], PLAIN))
    assert found.speedup == pytest.approx(plain / slow) and found.speedup < 0.75
    assert found.interval == (found.speedup, found.speedup)
    assert found.stats.draft_acceptance_rate == 0.0


# Entries written by hand.


def entry(
    prompt: str = "a",
    method: str = "plain",
    seconds: float = 2.0,
    *,
    tokens: int = 10,
    prefill: float = 1.0,
    suite: str = "suite",
    task: str = "",
    **settings: object,
) -> Entry:
    stats = Stats(rounds=tokens, tokens=tokens, prefill_seconds=prefill)
    whole = Entry(suite, task, prompt, 0, 0, method, 5, tokens, seconds, stats)
    return replace(whole, **settings)  # type: ignore[arg-type]


def pair(prompt: str, seconds: float, **settings: object) -> list[Entry]:
    """A text by plain decoding in two seconds, and by "fast"."""
    fast = entry(prompt, "fast", seconds, **settings)  # type: ignore[arg-type]
    return [entry(prompt, suite=fast.suite, task=fast.task), fast]


def names(found: Summary) -> list[tuple[str, int]]:
    return [(group.name, group.texts) for group in found.groups]


def test_a_suite_of_one_task_is_named_by_itself() -> None:
    lines = [
        *pair("a", 1, suite="one", task="x"),
        *pair("b", 1, suite="two", task="x"),
        *pair("c", 1, suite="two", task="y"),
        *pair("d", 1, suite="one", task="x"),
    ]
    assert names(summarise(lines)) == [("one", 2), ("two/x", 1), ("two/y", 1)]
    assert summarise(lines).overall.texts == 4


def test_speed_is_over_the_same_texts() -> None:
    failed = replace(entry("b", "fast"), tokens=0, seconds=0.0, error="broke")
    found = summarise([*pair("a", 1.0), entry("b"), failed, entry("c", seconds=50.0)]).overall
    assert (found.methods["fast"].texts, found.methods["plain"].texts) == (1, 3)
    assert found.methods["fast"].speedup == 2.0
    assert found.methods["fast"].failures == {("suite", "b", 0): "broke"}


def test_texts_on_which_plain_decoding_failed_count_for_nobody() -> None:
    broken = [replace(each, error="broke") for each in pair("b", 1.0)[:1]]
    lines = [*pair("a", 1.0), *broken, entry("b", "fast", 0.001)]
    found = summarise(lines).overall
    assert (found.texts, found.methods["fast"].texts) == (2, 1)
    assert found.methods["fast"].speedup == 2.0
    assert found.methods["plain"].failures == {("suite", "b", 0): "broke"}
    nothing = summarise(lines[2:]).overall
    assert nothing.methods == {}
    assert nothing.failed == {"plain": "broke", "fast": "plain decoding did not finish"}


def test_one_failed_repeat_spoils_a_text() -> None:
    again = replace(entry("a", "fast", 1.0), repeat=1, error="broke")
    found = summarise([*pair("a", 1.0), again, *pair("b", 0.5)]).overall.methods["fast"]
    assert (found.texts, found.speedup) == (1, 4.0)


def test_the_median_of_repeats_counts() -> None:
    repeats = [
        replace(entry("a", "fast", seconds), repeat=n) for n, seconds in enumerate((9, 1, 2))
    ]
    found = summarise([entry("a"), *repeats]).overall.methods["fast"]
    assert (found.seconds, found.speedup, found.tokens) == (2.0, 1.0, 10)


def test_repeats_of_other_lengths_count_by_their_speed() -> None:
    """As lossy acceptance and noise that follows the time write them."""
    short = entry("a", "fast", 1.0, tokens=20)
    repeats = [
        replace(short, tokens=tokens, repeat=n, seconds=tokens / 20)
        for n, tokens in enumerate((20, 100, 120))
    ]
    found = summarise([entry("a", tokens=20), *repeats]).overall.methods["fast"]
    assert (found.seconds, found.tokens) == (1.0, 20)


def test_the_interval_lies_around_the_speed_up() -> None:
    lines = [line for n in range(40) for line in pair(str(n), 1.0 if n % 2 else 0.5)]
    found = summarise(lines).overall.methods["fast"]
    assert found.speedup == pytest.approx(2 / 0.75)
    low, high = found.interval
    assert 2.3 < low < found.speedup < high < 3.2
    assert found.mean_of_ratios == pytest.approx(3.0)
    assert summarise(lines).overall.methods["fast"].interval == found.interval


def test_decoding_alone_has_a_speed_only_after_the_prompt() -> None:
    usual = summarise(pair("a", 1.5)).overall.methods["fast"]
    assert usual.decode_speedup == 2.0
    for fast, plain in (
        (entry("a", "fast", 1.0), entry("a")),  # all came with the first pass
        (entry("a", "fast"), entry("a", seconds=1.0)),
        (entry("a", "fast", tokens=1), entry("a", tokens=1)),  # one token each
    ):
        assert summarise([plain, fast]).overall.methods["fast"].decode_speedup is None


def test_looping_texts_are_shown_apart() -> None:
    loops = [replace(line, loop_share=LOOPING) for line in pair("loops", 0.1, task="x")]
    # A method that writes a loop of its own does not make the text a looping one.
    own = [
        line if line.method == "plain" else replace(line, loop_share=0.9) for line in pair("b", 1)
    ]
    found = summarise([*loops, *own, *pair("c", 1.0)])
    assert (found.overall.looping, found.overall.texts) == (1, 3)
    assert found.overall.methods["fast"].speedup == pytest.approx(6 / 2.1)
    assert found.calm is not None
    assert found.calm.overall.methods["fast"].speedup == 2.0
    assert [group.looping for group in found.groups] == [1, 0]
    assert [group.texts for group in found.calm.groups] == [2]
    assert found.overall.methods["fast"].loop_share == pytest.approx((LOOPING + 0.9) / 3)
    only = summarise(loops)
    assert only.calm is None


def test_memory_is_compared_text_by_text() -> None:
    lines = [
        replace(line, peak_bytes=peak)
        for name, peaks in (("a", (100, 107)), ("b", (500, 501)), ("c", (50, 53)), ("d", (1, None)))
        for line, peak in zip(pair(name, 1.0), peaks, strict=True)
    ]
    assert summarise(lines).overall.methods["fast"].peak_over_plain == 3
    assert summarise(pair("a", 1.0)).overall.methods["fast"].peak_over_plain is None


def test_differences_are_found_in_all_repeats() -> None:
    place = Difference(3, 1, 2, 0.5)
    again = replace(entry("a", "fast", 1.0), repeat=1, difference=place)
    found = summarise([*pair("a", 1.0), again, *pair("b", 1.0)]).overall.methods["fast"]
    assert found.differences == {("suite", "a", 0): [place]}
    assert not found.identical


def test_what_was_left_out_is_told_and_does_not_count() -> None:
    left_out = LeftOut("suite", "x", "long", 0, "too long")
    found = summarise([*pair("a", 1.0), left_out])
    assert found.left_out == [left_out]
    assert (found.overall.texts, names(found)) == (1, [("suite", 1)])


def test_without_plain_decoding_there_is_nothing_to_compare_with() -> None:
    for lines in ([], [entry(method="fast")], [LeftOut("suite", "", "a", 0, "too long")]):
        with pytest.raises(ValueError, match="nothing to compare with"):
            summarise(lines)


def test_answers_to_one_prompt_count_as_one_text() -> None:
    several = [
        replace(line, group="same")
        for place, seconds in enumerate((0.5, 0.9, 0.7))
        for line in pair(f"{place}", seconds)
    ]
    (fast,) = (summarise(several).overall.methods[name] for name in ("fast",))
    assert (fast.texts, fast.prompts) == (3, 1)
    again = [*several, *pair("other", 0.6)]
    assert summarise(again).overall.methods["fast"].prompts == 2
