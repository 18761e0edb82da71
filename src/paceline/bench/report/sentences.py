"""A run's findings, in sentences that claim no more than its numbers show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from paceline.bench.entries import Entry
from paceline.bench.metrics import Group, MethodSummary
from paceline.bench.report import words
from paceline.bench.report.blocks import Verdict
from paceline.bench.report.folder import Run
from paceline.bench.results import object_in
from paceline.bench.trial import PLAIN
from paceline.tables import Cell, count

_FEW_PROMPTS = 5  # prompts are resampled, not texts
_ONE_PROMPT = "one prompt, no interval"
_PLAIN = "plain decoding"


def basis(run: Run) -> str:
    """What the numbers are based on."""
    options = object_in(run.asked, "options").items()
    settings = [f"{name.replace('_', ' ')} {value}" for name, value in options]
    trials = f"{_trials(run)} per text and method"
    sentence = f"{', '.join([_texts(run), trials, *settings])}."
    if run.simulated:
        sentence += (
            " The tokens are those of recorded texts, which every method was forced to follow; the "
            "passes were made by the model."
        )
    return sentence


def verdicts(run: Run) -> list[Verdict]:
    """One verdict per method other than plain decoding."""
    group = run.summary.overall
    found = [
        Verdict(name, words.speedup(method, "no interval"), _about(run, method))
        for name, method in group.methods.items()
        if name != PLAIN
    ]
    for name, reason in group.failed.items():
        if name != PLAIN:
            said = f"{name} finished no text: {_ended(reason)}"
            found.append(Verdict(name, Cell(words.NOTHING), [said]))
    return found


def limits(run: Run) -> list[str]:
    """Caveats: texts left out, loops, plain decoding's own failures and differences."""
    sentences = [*_about_plain(run), _about_loops(run.summary.overall), *_left_out(run)]
    found = run.summary.overall
    asked = run.asked.get("methods", ())
    if untried := [name for name in asked if name not in {**found.methods, **found.failed}]:
        sentences.append(f"The run was interrupted before any trial of {', '.join(untried)}.")
    few = []
    for group in run.summary.groups:
        judged = [method.prompts for method in group.methods.values() if words.interval(method)]
        if judged and min(judged) < _FEW_PROMPTS:
            few.append(f"{group.name} ({min(judged)})")
    if few:
        sentences.append(
            f"Tasks whose intervals come from fewer than {_FEW_PROMPTS} prompts: {', '.join(few)}."
        )
    return sentences


def _about(run: Run, method: MethodSummary) -> list[str]:
    return [
        _speed(run, method),
        *_identity(run, method),
        *_tasks(run, method.method),
        *_without_loops(run, method.method),
        *_failures(run.summary.overall, method),
    ]


def _speed(run: Run, method: MethodSummary) -> str:
    speed = words.times(method.speedup)
    did = f"ran at {speed} the speed of {_PLAIN}"
    if method.identical and not run.simulated:
        did = f"wrote the same tokens as {_PLAIN} everywhere and ran at {speed} its speed"
    start = f"{_where(run, method)}, {method.method} {did}"
    interval = words.interval(method)
    if not interval:
        return f"{start} ({_ONE_PROMPT})."
    sentence = f"{start} (95 % interval {interval})"
    if words.tone(method) == words.EVEN:
        return f"{sentence}: the interval includes 1, not distinguishable from {_PLAIN}."
    return f"{sentence}: slower." if words.tone(method) == words.SLOWER else f"{sentence}."


def _identity(run: Run, method: MethodSummary) -> list[str]:
    if method.lossy:
        return [
            "It accepted guesses that are likely enough (typical acceptance): its texts are lossy "
            f"and were not compared with those of {_PLAIN}."
        ]
    if method.identical:
        return []
    whose = "Its tokens" if run.simulated else "Its texts"
    sentence = (
        f"{whose} differ from those of {_PLAIN} on {len(method.differences)} of "
        f"{count(method.texts, 'text')}"
    )
    gap = words.largest_gap(method)
    if gap is None:
        return [f"{sentence}; in each case one text ends where the other continues."]
    return [f"{sentence}; the largest logit gap is {words.short(gap)}."]


def _tasks(run: Run, name: str) -> list[str]:
    found = {
        group.name: group.methods[name] for group in run.summary.groups if name in group.methods
    }
    if len(found) < 2:
        return []
    order = sorted(found, key=lambda task: found[task].speedup, reverse=True)
    fastest, slowest = (_task(task, found[task]) for task in (order[0], order[-1]))
    sentences = [f"Fastest task: {fastest}; slowest: {slowest}."]
    for tone, judgement in (
        (words.SLOWER, f"Slower than {_PLAIN}"),
        (words.EVEN, f"Not distinguishable from {_PLAIN}"),
    ):
        such = [task for task in found if words.tone(found[task]) == tone]
        if such:
            few = sum(found[task].prompts < _FEW_PROMPTS for task in such)
            sentences.append(f"{judgement} {_on_tasks(such, list(found))}{_on_few(few, such)}.")
    return sentences


def _on_tasks(such: Sequence[str], every: Sequence[str]) -> str:
    others = [task for task in every if task not in such]
    if not others:
        return f"on all {len(every)} tasks"
    start = f"on {len(such)} of {len(every)} tasks"
    if 3 * len(others) < len(such):
        return f"{start}, all but {', '.join(others)}"
    return f"{start}: {', '.join(such)}"


def _on_few(few: int, such: Sequence[str]) -> str:
    """How few prompts a judgement on tasks is based on."""
    if not few:
        return ""
    which = f"{few} of them " if few < len(such) else "each " if few > 1 else ""
    return f" ({which}on fewer than {_FEW_PROMPTS} prompts)"


def _task(task: str, method: MethodSummary) -> str:
    interval, texts = words.interval(method), count(method.texts, "text")
    sure = f"{interval}, {texts}" if interval else _ONE_PROMPT
    return f"{task}, {words.times(method.speedup)} ({sure})"


def _without_loops(run: Run, name: str) -> list[str]:
    calm = run.summary.calm
    if calm is None or name not in calm.overall.methods:
        return []
    method = calm.overall.methods[name]
    sure = words.interval(method) or _ONE_PROMPT
    return [
        f"Without the texts that loop: {words.times(method.speedup)} ({sure}) on "
        f"{count(method.texts, 'text')}."
    ]


def _failures(group: Group, method: MethodSummary) -> list[str]:
    sentences = _failed("It", method, "not counted for it")
    plain = group.methods[PLAIN].failures if PLAIN in group.methods else {}
    not_run = group.texts - method.texts - len({*method.failures, *plain})
    if not_run > 0:
        sentences.append(f"There is no trial of it on {count(not_run, 'text')}.")
    return sentences


def _failed(who: str, method: MethodSummary, which: str) -> list[str]:
    return [
        f"{who} failed on {count(len(method.failures), 'text')}, {which}; first reason: "
        f"{_ended(reason)}"
        for reason in [*method.failures.values()][:1]
    ]


def _about_plain(run: Run) -> list[str]:
    group = run.summary.overall
    if PLAIN in group.failed:
        return [f"Plain decoding finished no text: {_ended(group.failed[PLAIN])}"]
    plain = group.methods[PLAIN]
    sentences = _failed("Plain decoding", plain, "which are not counted")
    if plain.differences:
        sentences.append(
            f"Plain decoding did not reproduce its first output on {len(plain.differences)} of "
            f"{count(plain.texts, 'text')}."
        )
    return sentences


def _about_loops(group: Group) -> str:
    how = "a fifth or more of its tokens in runs of twenty that occur more than once"
    if not group.looping:
        return f"No output of {_PLAIN} loops ({how})."
    return f"The output of {_PLAIN} loops on {group.looping} of {group.texts} texts ({how})."


def _left_out(run: Run) -> list[str]:
    left_out = run.summary.left_out
    if not left_out:
        return []
    reasons = Counter(each.reason for each in left_out)
    listed = "; ".join(f"{reason} ({number})" for reason, number in reasons.items())
    verb = "was" if len(left_out) == 1 else "were"
    return [f"{count(len(left_out), 'text')} {verb} left out: {listed}."]


def _where(run: Run, method: MethodSummary) -> str:
    """ "On 24 texts of 6 tasks"; "On the 22 of 24 texts that count for it"."""
    group = run.summary.overall
    if method.texts == group.texts:
        return f"On {_texts(run)}"
    return f"On the {method.texts} of {count(group.texts, 'text')} that count for it"


def _texts(run: Run) -> str:
    summary = run.summary
    return f"{count(summary.overall.texts, 'text')} of {count(len(summary.groups), 'task')}"


def _trials(run: Run) -> str:
    trials = Counter(
        (line.key, line.method) for line in run.lines if isinstance(line, Entry)
    ).values()
    fewest, most = min(trials), max(trials)
    counted = count(most, "trial")
    return counted if fewest == most else f"{fewest} to {counted}"


def _ended(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
