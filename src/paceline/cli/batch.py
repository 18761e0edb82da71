"""`paceline batch`: the requests of a file in OpenAI's batch format, answered on this machine."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Annotated, Any

import typer

from paceline.cli import common
from paceline.cli.batch_ray import Answer, RayOptions, on_ray
from paceline.cli.flags import option, told
from paceline.cli.groups import AliasOption, BudgetOption, Choice, DatastoreOption, Machine
from paceline.errors import UsageError
from paceline.serve.batch_lines import AnswersOf, check_custom_ids, read_lines
from paceline.serve.batch_results import BatchCounts, Results, results_in
from paceline.serve.logs import log_to_stderr
from paceline.serve.settings import public_name


@dataclass(frozen=True)
class Files:
    """Files of requests and results."""

    input_file: Annotated[
        Path, told("JSONL file of requests, in OpenAI's batch format.", "--input")
    ]
    output: Annotated[Path, told("JSONL file of results; requests already in it are not repeated.")]
    errors: Path | None = option(None, "JSONL file for failed requests; default: --output.")


def batch(
    *,
    files: Files,
    choice: Choice,
    alias: AliasOption = None,
    max_batch: Annotated[int, told("Most texts written at once.", min=1)] = 16,
    budget: BudgetOption = None,
    machine: Machine,
    datastore: DatastoreOption = None,
    ray: RayOptions,
) -> None:
    """Answer the requests of a batch file; after an interruption, the same command continues."""
    common.request_options(budget=budget)
    placement = {**vars(machine)}
    given = AnswersOf(
        model=choice.model,
        method=choice.chosen,
        names=[public_name(choice.model), *(alias or ())],
        max_batch=max_batch,
        threads=placement.pop("threads"),
        budget=budget,
        placement={**placement, "datastore": datastore},
    )
    how = on_ray(given, ray) if ray.wanted else _here(given)
    total = _checked(files)
    with results_in(files.output, files.errors) as results:
        left = sum(not results.has(line) for line in read_lines(files.input_file))
        if not left:
            common.note(f"nothing to do: all {total} requests have results in {files.output}")
        else:
            common.check_installed()
            with how as answer:
                _answer_all(answer, files.input_file, results, total, total - left)
    if results.failed:
        raise typer.Exit(1)


def _checked(files: Files) -> int:
    """The number of lines. Raises UsageError if two files are the same or the input is a folder or
    pipe; see also `check_custom_ids`."""
    found = [path.resolve() for path in astuple(files) if path is not None]
    if len({*found}) < len(found):
        raise UsageError("--input, --output and --errors must be different files")
    if files.input_file.is_dir():
        raise UsageError(f"{files.input_file} is a folder: name a batch file in it")
    if files.input_file.exists() and not files.input_file.is_file():
        raise UsageError(f"{files.input_file} is read several times: name a file, not a pipe")
    return check_custom_ids(files.input_file)


@contextmanager
def _here(given: AnswersOf) -> Iterator[Answer]:
    """Answer with a session of this process."""
    from paceline.serve.batch_run import batch_server, run_batch

    log_to_stderr(logging.ERROR)
    session = common.open_session(
        given.model, given.method, threads=given.threads, **given.placement
    )
    session.budget = given.budget
    server = batch_server(session, given.names, given.max_batch)
    yield lambda path, results: _until_terminated(run_batch(server, read_lines(path), results))


def _until_terminated(work: Coroutine[Any, Any, None]) -> None:
    """Do the work; SIGTERM cancels it, as Ctrl-C does. An error raised where the signal arrives
    could be lost: in the callback of a weak reference, of which there are many, all are ignored."""
    before = signal.getsignal(signal.SIGTERM)

    async def do() -> None:
        loop, doing = asyncio.get_running_loop(), asyncio.ensure_future(work)

        def terminate(number: int, frame: FrameType | None) -> None:
            signal.signal(number, signal.SIG_DFL)  # a second one kills
            loop.call_soon_threadsafe(doing.cancel)

        if before is not signal.SIG_IGN:
            signal.signal(signal.SIGTERM, terminate)
        try:
            await doing
        finally:
            signal.signal(signal.SIGTERM, before)

    try:
        asyncio.run(do())
    except asyncio.CancelledError:
        raise SystemExit(128 + signal.SIGTERM) from None


def _answer_all(answer: Answer, path: Path, results: Results, total: int, known: int) -> None:
    """Answer the lines with a progress bar, and print a summary. known: have a result already."""
    began = perf_counter()
    with common.progress("requests") as bar:
        task = bar.add_task("", total=total, completed=known)
        results.heard = lambda _: bar.advance(task)
        try:
            with common.on_interrupt("repeat the command to continue"):
                answer(path, results)
        finally:
            common.note(_summary(results.counts, perf_counter() - began))


def _summary(counts: BatchCounts, seconds: float) -> str:
    parts = [f"{counts.answered} answered"]
    if counts.failed:
        codes = ", ".join(f"{code} {number}" for code, number in counts.codes.most_common())
        parts.append(f"{counts.failed} failed ({codes})")
    if counts.known:
        parts.append(f"{counts.known} already had results")
    speed = counts.tokens / seconds
    return f"{', '.join(parts)}; {counts.tokens} tokens in {seconds:.1f} s, {speed:.1f} a second"
