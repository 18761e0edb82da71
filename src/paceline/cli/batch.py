"""`paceline batch`: the requests of a file in OpenAI's batch format, answered on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from paceline.cli import common, drafts
from paceline.cli.datastore import DatastoreOption
from paceline.cli.served import AliasOption, check_installed, served_method
from paceline.errors import UsageError
from paceline.serve.batch_lines import BatchLine, check_custom_ids, read_lines
from paceline.serve.batch_results import Results, results_in
from paceline.serve.names import public_name

if TYPE_CHECKING:
    from paceline.serve.batch_run import BatchCounts
    from paceline.session import Session

__all__ = ["batch"]


def batch(
    input_file: Annotated[
        Path, typer.Option("--input", help="JSONL file of requests, in OpenAI's batch format.")
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", help="JSONL file of results; what is in it already is not done again."
        ),
    ],
    errors: Annotated[
        Path | None,
        typer.Option("--errors", help="Another file, for results of requests that failed."),
    ] = None,
    model: common.ModelOption = common.DEFAULT_MODEL,
    alias: AliasOption = None,
    method: drafts.MethodOption = None,
    draft_model: drafts.DraftModelOption = None,
    max_batch: Annotated[
        int, typer.Option("--max-batch", min=1, help="Most texts that are written at a time.")
    ] = 16,
    budget: common.BudgetOption = None,
    threads: common.ThreadsOption = None,
    device: common.DeviceOption = None,
    dtype: common.DtypeOption = None,
    weights: common.WeightsOption = "auto",
    cache_dtype: common.CacheDtypeOption = "float32",
    datastore: DatastoreOption = None,
) -> None:
    """Answer the requests of a batch file; interrupted, the same command goes on."""
    common.request_options(budget=budget)
    chosen = served_method(method, draft_model)
    _check_apart(input_file, output, errors)
    total = check_custom_ids(input_file)
    with results_in(output, errors) as results:
        left = sum(not results.has(line) for line in read_lines(input_file))
        if not left:
            common.note(f"nothing to do: all {total} requests have results in {output}")
            return
        check_installed()
        session = common.open_session(
            model,
            chosen,
            threads=threads,
            device=device,
            dtype=dtype,
            weights=weights,
            cache_dtype=cache_dtype,
            datastore=datastore,
        )
        session.budget = budget
        names = [public_name(model), *(alias or ())]
        work = _Work(read_lines(input_file), results, total - left, total)
        counts = work.run(session, names, max_batch)
    if counts.failed:
        raise typer.Exit(1)


def _check_apart(*paths: Path | None) -> None:
    """Raise UsageError where two of the files are one."""
    found = [path.resolve() for path in paths if path is not None]
    if len({*found}) < len(found):
        raise UsageError("--input, --output and --errors must be different files")


class _Work(NamedTuple):
    """What is to be done. known: lines that have a result; total: all lines."""

    lines: Iterable[BatchLine]
    results: Results
    known: int
    total: int

    def run(self, session: Session, names: Sequence[str], max_batch: int) -> BatchCounts:
        """Answer the lines with a bar, and say at the end what came of it."""
        from paceline.serve.batch_run import BatchCounts, batch_server, run_batch

        latest, began = BatchCounts(), perf_counter()
        server = batch_server(session, names, max_batch)
        with common.progress("requests") as bar:
            task = bar.add_task("", total=self.total, completed=self.known)

            def heard(counts: BatchCounts) -> None:
                nonlocal latest
                latest = counts
                bar.update(task, completed=self.known + counts.answered + counts.failed)

            try:
                latest = asyncio.run(run_batch(server, self.lines, self.results, heard))
                return latest
            except KeyboardInterrupt:
                common.note("interrupted: the same command goes on")
                raise
            finally:
                common.note(_summary(latest, perf_counter() - began))


def _summary(counts: BatchCounts, seconds: float) -> str:
    parts = [f"{counts.answered} answered"]
    if counts.failed:
        codes = ", ".join(f"{code} {number}" for code, number in counts.codes.most_common())
        parts.append(f"{counts.failed} failed ({codes})")
    if counts.known:
        parts.append(f"{counts.known} were there already")
    speed = counts.tokens / seconds
    return f"{', '.join(parts)}; {counts.tokens} tokens in {seconds:.1f} s, {speed:.1f} a second"
