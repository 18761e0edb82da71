"""Several methods on the same prompts, in one process, interleaved: who writes what, how fast.

Every method, plain decoding included, goes through the same loop, the same clock and the same
token counter. Per prompt the methods take turns, `repeats` times over, beginning with another one
each time; what counts is each method's median time for the prompt.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from paceline.drafters import make_drafter
from paceline.errors import UsageError
from paceline.loop import Generation, decode
from paceline.options import Options
from paceline.prompts import PromptRecord
from paceline.records import Stats
from paceline.stopping import Stopping
from paceline.text import OutputText
from paceline.tree import EMPTY

if TYPE_CHECKING:
    from paceline.session import Session

__all__ = ["PLAIN", "Comparison", "MethodReport", "Mismatch", "PromptRecord", "compare"]

PLAIN = "plain"


@dataclass(frozen=True)
class Mismatch:
    """The first place where a method's tokens differ from plain decoding's.

    logit_gap: the target's logit of plain's token minus that of the method's, both scored by a
    one-token pass; None where one of the outputs ended there.
    """

    prompt: str
    position: int
    plain_token: int | None
    method_token: int | None
    logit_gap: float | None


@dataclass
class MethodReport:
    """What one method did over all prompts."""

    method: str
    tokens: int = 0
    seconds: float = 0.0
    stats: Stats = field(default_factory=Stats)
    mismatches: list[Mismatch] = field(default_factory=list)
    speedups: dict[str, float] = field(default_factory=dict)

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens over the sum of the prompts' median seconds, prefill included."""
        return self.tokens / self.seconds

    @property
    def identical(self) -> bool:
        """Whether every output was plain decoding's, token for token."""
        return not self.mismatches


@dataclass
class Comparison:
    """All methods, plain decoding first."""

    methods: dict[str, MethodReport]

    def speedup(self, method: str) -> float:
        """How many times as fast as plain decoding in the same run."""
        report, plain = self.methods[method], self.methods[PLAIN]
        return report.tokens_per_second / plain.tokens_per_second


@dataclass
class _Trial:
    """One generation of one method on one prompt."""

    tokens: list[int]
    seconds: float
    stats: Stats


def compare(
    session: Session,
    prompts: Sequence[PromptRecord],
    methods: Sequence[str],
    options: Options,
    repeats: int = 3,
    on_trial: Callable[[], None] = lambda: None,
) -> Comparison:
    """Run every method on every prompt, `repeats` times, and compare with plain decoding.

    methods: in the notation "anpd:n=5,k=7"; plain decoding is added where it is missing.
    on_trial: called after each of the trials, for progress bars.

    Raises UsageError for an unknown method, prompts with one id, or a prompt that does not fit.
    """
    names = _names(methods)
    for name in names:
        make_drafter(name)
    _check_prompts(prompts)
    result = Comparison({name: MethodReport(name) for name in names})
    _warm_up(session, names, prompts[0])
    turntable = deque(names)
    for prompt in prompts:
        for turn, messages in enumerate(_conversations(session, prompt, options)):
            several = len(prompt.turns) > 1 and not _is_raw(session, prompt)
            label = f"{prompt.id}#{turn + 1}" if several else prompt.id
            ids = session.encode(messages)
            references = session.encode_references(prompt.references)
            trials: dict[str, list[_Trial]] = {name: [] for name in names}
            for _ in range(repeats):
                for name in turntable:
                    trials[name].append(_run(session, name, ids, references, options))
                    on_trial()
                # Whatever warms or tires the machine meets every method in every place.
                turntable.rotate(-1)
            _record(session, result, label, ids, trials)
    return result


def count_trials(
    session: Session, prompts: Sequence[PromptRecord], methods: Sequence[str], repeats: int
) -> int:
    """How often `compare` will call `on_trial`."""
    texts = sum(1 if _is_raw(session, prompt) else len(prompt.turns) for prompt in prompts)
    return texts * len(_names(methods)) * repeats


def _names(methods: Sequence[str]) -> list[str]:
    """Each method once, plain decoding first."""
    return list(dict.fromkeys([PLAIN, *methods]))


def _check_prompts(prompts: Sequence[PromptRecord]) -> None:
    if not prompts:
        raise UsageError("there is nothing to compare on: give at least one prompt")
    twice = [name for name, count in Counter(prompt.id for prompt in prompts).items() if count > 1]
    if twice:
        raise UsageError(f"{twice[0]!r} is the id of several prompts: give each its own")


def _conversations(
    session: Session, prompt: PromptRecord, options: Options
) -> Iterator[str | list[dict[str, str]]]:
    """What to continue at each turn; the model's own plain answers stand in between."""
    if _is_raw(session, prompt):
        yield "\n\n".join(prompt.turns)
        return
    messages: list[dict[str, str]] = []
    for turn, text in enumerate(prompt.turns):
        messages.append({"role": "user", "content": text})
        yield list(messages)
        if turn + 1 < len(prompt.turns):
            trial = _run(session, PLAIN, session.encode(messages), [], options)
            answer = session.tokenizer.decode(trial.tokens, skip_special_tokens=True)
            messages.append({"role": "assistant", "content": answer})


def _is_raw(session: Session, prompt: PromptRecord) -> bool:
    """Whether the turns are one text to continue; without a chat template they have to be."""
    return prompt.raw or not session.tokenizer.chat_template


def _warm_up(session: Session, names: Sequence[str], prompt: PromptRecord) -> None:
    short = Options(max_new_tokens=8, ignore_eos=True)
    text = prompt.turns[0]
    for name in names:
        _run(session, name, session.encode(text), [], short)


def _run(
    session: Session,
    name: str,
    ids: Sequence[int],
    references: Sequence[Sequence[int]],
    options: Options,
) -> _Trial:
    eos_ids = () if options.ignore_eos else session.eos_ids
    conditions = [OutputText(session.tokenizer, options.stop).push] if options.stop else []
    stopping = Stopping(options.max_new_tokens, eos_ids, conditions)
    stats = Stats()
    session.target.sync([ids[:1]])  # every trial reads its whole prompt
    began = perf_counter()
    generation = Generation(ids, make_drafter(name), stopping, options.sampler(), references)
    for round in decode(session.target, [generation], session.budget_of(options)):
        stats.add(round)
    return _Trial(generation.output, perf_counter() - began, stats)


def _record(
    session: Session,
    result: Comparison,
    label: str,
    ids: Sequence[int],
    trials: dict[str, list[_Trial]],
) -> None:
    plain = trials[PLAIN][0].tokens
    plain_seconds = median(trial.seconds for trial in trials[PLAIN])
    for name, runs in trials.items():
        report = result.methods[name]
        seconds = median(trial.seconds for trial in runs)
        report.tokens += len(runs[0].tokens)
        report.seconds += seconds
        report.stats.merge(runs[0].stats)
        report.speedups[label] = plain_seconds / seconds
        for tokens in {tuple(trial.tokens) for trial in runs} - {tuple(plain)}:
            report.mismatches.append(_mismatch(session, label, ids, plain, tokens))


def _mismatch(
    session: Session, label: str, ids: Sequence[int], plain: Sequence[int], other: Sequence[int]
) -> Mismatch:
    shared = min(len(plain), len(other))
    place = next((i for i in range(shared) if plain[i] != other[i]), shared)
    if place == shared:
        return Mismatch(label, place, [*plain, None][place], [*other, None][place], None)
    session.target.sync([[*ids, *plain[:place]]])
    row = session.target.score([EMPTY])[0][0]
    gap = float(row[plain[place]] - row[other[place]])
    return Mismatch(label, place, plain[place], other[place], gap)


def report_as_json(comparison: Comparison) -> list[dict[str, Any]]:
    """One record per method, ready for `json.dumps`."""
    return [
        {
            "method": name,
            "tokens": report.tokens,
            "seconds": report.seconds,
            "tokens_per_second": report.tokens_per_second,
            "speedup": comparison.speedup(name),
            "speedup_per_prompt": report.speedups,
            "mean_acceptance_length": report.stats.mean_acceptance_length,
            "draft_acceptance_rate": report.stats.draft_acceptance_rate,
            "acceptance_histogram": dict(sorted(report.stats.acceptance_histogram.items())),
            "seconds_by_part": {
                "prefill": report.stats.prefill_seconds,
                "draft": report.stats.draft_seconds,
                "target": report.stats.target_seconds,
                "commit": report.stats.commit_seconds,
            },
            "identical": report.identical,
            "mismatches": [vars(mismatch) for mismatch in report.mismatches],
        }
        for name, report in comparison.methods.items()
    ]
