"""What the bench commands share: options, result files and progress bars."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from paceline.cli import common
from paceline.cli.flags import option, told
from paceline.cli.groups import Choice, DraftModelOption, ModelOption, Placement
from paceline.defaults import DEFAULT_MODEL
from paceline.errors import UsageError
from paceline.file_locks import alone, lock_beside

if TYPE_CHECKING:
    from paceline.bench.comparison import Comparison
    from paceline.bench.entries import Entry, LeftOut
    from paceline.bench.suites import Text
    from paceline.bench.traces import Recording, TraceRecord
    from paceline.bench.trial import Contender
    from paceline.cli.findings import Findings
    from paceline.prompts import PromptRecord
    from paceline.session import Session

DataOption = Annotated[Path | None, told("Folder with the suites' JSONL files.")]
LimitOption = Annotated[int | None, told("Most prompts of each task.", min=1)]
_SAME = ("model", "machine", "versions", "preparation", "budget")
"""Circumstances that must be the same to resume a run."""

SuitesArgument = Annotated[
    list[str], told('Suites, JSONL files, or "all" for every file in --data.', argument=True)
]


@dataclass(frozen=True)
class Contenders:
    """Methods and baselines, and how they start."""

    methods: str = option(
        "plain,auto,anpd,llma,pld", "Methods and baselines with settings, separated by commas."
    )
    draft_model: DraftModelOption = None
    warm: bool = option(
        False, "Methods keep their cache and what they learned between texts; baselines start cold."
    )
    gguf: Path | None = option(None, "The model's GGUF file, for llama.cpp.")

    @common.interruptible()
    def names(self) -> list[str]:
        """Plain decoding first, every name once; raises UsageError for one that could not run.

        The draft model is for methods that take one and name none; if none takes it, `speculative`
        is added.
        """
        from paceline.bench.baselines import check_baseline, is_baseline
        from paceline.bench.trial import PLAIN
        from paceline.drafters import add_draft, check_method

        names = list(dict.fromkeys([PLAIN, *split_methods(self.methods)]))
        if (draft := self.draft_model) is not None:
            found = [None if is_baseline(name) else add_draft(name, draft) for name in names]
            more = [] if any(found) else [Choice(draft_model=draft).chosen]
            names = [*(drafting or name for drafting, name in zip(found, names)), *more]
        if self.gguf is not None and not any(map(is_baseline, names)):
            raise UsageError("--gguf is for llama.cpp: name it in --methods, or leave --gguf out")
        for name in names:
            check_baseline(name, self.gguf) if is_baseline(name) else check_method(name)
        return names

    @property
    def state(self) -> str:
        """How texts start, in the words of result files."""
        from paceline.bench.results import COLD, WARM

        return WARM if self.warm else COLD

    @common.interruptible()
    def made(
        self, names: Sequence[str], session: Session, model: str, placement: Placement
    ) -> list[Contender]:
        """Methods on the session, and baselines that load the model themselves and start every text
        cold."""
        from paceline.bench.baselines import Native, is_baseline, make_baseline
        from paceline.bench.trial import Method

        native = Native(model, placement.device, placement.dtype, session.eos_ids, self.gguf)
        return [
            make_baseline(name, native)
            if is_baseline(name)
            else Method(name, session, warm=self.warm)
            for name in names
        ]


@dataclass(frozen=True, kw_only=True)
class Trials(Placement):
    """A model, how many trials it has, and where results go."""

    out: Annotated[Path, told("Folder for results and reports.")]
    model: ModelOption = DEFAULT_MODEL
    repeats: int = option(3, "Trials per text and method; the median counts.", min=1)
    resume: bool = option(False, "Continue an interrupted run.")

    def measure(
        self,
        name: str,
        texts: Sequence[Text | Recording],
        asked: dict[str, Any],
        contenders: Contenders = Contenders(),
    ) -> tuple[Path, Findings]:
        """Run contenders on texts with a progress bar, or resume; returns the result file and all
        that it holds then. Other processes are locked out meanwhile; Ctrl-C leaves a file to
        continue with.

        name: of the file, up to the model's; its first word is the kind of the run.
        asked: methods, options, and whatever else must be the same to resume a run, besides texts,
        trials, model and machine.

        Raises UsageError if another process writes the file, and what `ResultFile` raises.
        """
        from paceline.bench.comparison import Comparison
        from paceline.cli.findings import Findings
        from paceline.models.description_cache import hash_of

        place = {each.name: getattr(self, each.name) for each in fields(Placement)}
        session = common.open_to_measure(self.model, "plain", measure=True, **place)
        made = contenders.made(asked["methods"], session, self.model, self)
        path = self.out / f"{name}-{slug(self.model)[-60:]}.jsonl"
        if self.resume and contenders.warm and path.exists():
            raise UsageError(
                "a --warm run cannot be continued, as its methods have lost what they knew: repeat "
                "it with another --out"
            )
        options = session.options.with_(**asked["options"])
        # Before the file: what cannot be compared must leave none behind.
        comparison = Comparison(session, made, texts, options, self.repeats)
        found = common.circumstances(session, self.model)
        # So that a run is not resumed on other prompts; where they were read does not matter.
        said = json.dumps([[text.suite, _compared(text.record)] for text in texts])
        run = {"kind": name.partition("-")[0], **asked, "state": contenders.state}
        if contenders.gguf is not None:
            run["gguf"] = hash_of(contenders.gguf)
        if files := _files_of(asked["methods"]):
            run["files"] = files
        run |= {
            "repeats": self.repeats,
            "dtype": self.dtype,
            "texts": hashlib.sha256(said.encode()).hexdigest()[:16],
        }
        run |= {each: found.pop(each) for each in _SAME}
        if prepared := run["preparation"]:  # its times differ from start to start
            found["plain_copy"] = prepared["plain_copy"]
            run["preparation"] = {**prepared, "plain_copy": found["plain_copy"].partition(":")[0]}
        return path, Findings(_measured(comparison, path, {**found, "run": run}, self.resume))

    def name_results(self, path: Path) -> None:
        """Say where results are, and which command shows them."""
        shown = f"paceline bench report {shlex.quote(str(self.out))}"
        common.note(f"results are in {path}; tables and plots: {shown}")


def _files_of(methods: Iterable[str]) -> dict[str, str]:
    """Parts, draft models and datastores that settings name, with a hash of what is in each."""
    from paceline.models.description_cache import hash_of

    found = {}
    for value in (each for name in methods for each in re.findall(r"=([^=,()]+)", name)):
        place = Path(os.path.expanduser(value))
        if os.path.exists(place):
            files = sorted(each for each in (place, *place.rglob("*")) if each.is_file())
            said = [[str(each.relative_to(place)), hash_of(each)] for each in files]
            found[value] = hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]
    return found


def _compared(record: PromptRecord | TraceRecord) -> dict[str, Any]:
    """What makes a text another one."""
    return {each.name: getattr(record, each.name) for each in fields(record) if each.compare}


@dataclass(frozen=True)
class SuiteTexts:
    """Which texts of the suites to use."""

    data: DataOption = None
    limit: LimitOption = None

    @common.interruptible()
    def read(self, suites: list[str], by_category: bool = False) -> list[Text]:
        """See `read_suites`."""
        from paceline.bench.suites import read_suites

        return read_suites(suites, self.data, self.limit, by_category)


@dataclass(frozen=True)
class Tryout:
    """Prompts to try methods on.

    options: of requests. repeats: trials per prompt that the user wants; None leaves it to the study.
    """

    session: Session
    prompts: Sequence[PromptRecord]
    options: dict[str, Any]
    repeats: int | None

    def of(
        self, names: Iterable[str], budget: int, repeats: int, label: str
    ) -> list[Entry | LeftOut]:
        """Try plain decoding and these methods in turns, `repeats` times, with a progress bar."""
        from paceline.bench.comparison import Comparison
        from paceline.bench.suites import Text
        from paceline.bench.trial import PLAIN, Method

        session = self.session
        found: list[Entry | LeftOut] = []
        methods = [Method(name, session) for name in (PLAIN, *names)]
        texts = [Text("prompts", record) for record in self.prompts]
        options = session.options.with_(**self.options, budget=budget)
        run_with_bar(Comparison(session, methods, texts, options, repeats), found, label)
        return found


def split_methods(text: str) -> list[str]:
    """Split "plain,anpd:n=5,k=7,llma": a part "setting=…" or "-…" belongs to the method before it."""
    from paceline.drafters.settings import split_at

    names: list[str] = []
    for part in filter(None, (part.strip() for part in split_at(",", text))):
        if names and ("=" in part.partition(":")[0] or part.startswith("-")):
            names[-1] += f",{part}"
        else:
            names.append(part)
    if not names:
        raise UsageError("name at least one method, e.g. --methods plain,anpd,llma")
    return names


def slug(name: str) -> str:
    """A name fit for a file."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-")


def run_with_bar(comparison: Comparison, sink: list[Entry | LeftOut], label: str) -> None:
    """Run, and show progress."""
    with common.progress(label) as bars:
        task = bars.add_task("", total=comparison.trials)
        comparison.run(sink, on_trial=lambda: bars.advance(task))


def _measured(
    comparison: Comparison, path: Path, header: dict[str, Any], resume: bool
) -> list[Entry | LeftOut]:
    from paceline.bench.results import ResultFile

    lock = lock_beside(path)
    with alone(lock, path, f"results to {path}", "wait until it is done, or choose another --out"):
        try:
            results = ResultFile(path, header, resume)
            with common.on_interrupt(f"{path} keeps what was measured; continue with --resume"):
                run_with_bar(comparison, results, "measuring")
        finally:
            with suppress(OSError):  # Windows keeps a file that is open
                lock.unlink()
    return results
