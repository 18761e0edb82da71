"""`paceline batch --ray`: the same work by Ray actors, with all answers in one file."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from paceline.cli import common
from paceline.errors import UsageError
from paceline.serve.batch_lines import BatchLine, Outcome, read_lines
from paceline.serve.batch_results import Results
from paceline.serve.batch_rows import AnswersOf, outcomes, row

if TYPE_CHECKING:
    from paceline.serve.batch_run import BatchCounts, Heard

__all__ = [
    "Answer",
    "RayOptions",
    "Work",
    "on_ray",
]


class Work(NamedTuple):
    """A batch file and its results. known: lines that have a result; total: all lines."""

    path: Path
    results: Results
    known: int
    total: int


Answer = Callable[[Work, "Heard"], "BatchCounts"]
"""Answers all lines that have no result, and reports each."""


@dataclass(frozen=True)
class RayOptions:
    """Whether to answer on Ray, and on how much of it; see `ray_batch.cluster` and `Pool`."""

    ray: Annotated[
        bool,
        typer.Option("--ray", help="Answer on Ray: on a running cluster, or else a new one."),
    ] = False
    ray_address: Annotated[
        str | None,
        typer.Option("--ray-address", help="Ray cluster elsewhere, e.g. ray://HOST:10001."),
    ] = None
    ray_actors: Annotated[
        int, typer.Option("--ray-actors", min=1, help="Number of actors; each loads the model.")
    ] = 1
    ray_cpus: Annotated[
        float, typer.Option("--ray-cpus", min=0.0, help="CPUs per actor, and default of --threads.")
    ] = 1.0
    ray_gpus: Annotated[float, typer.Option("--ray-gpus", min=0.0, help="GPUs per actor.")] = 0.0

    @property
    def wanted(self) -> bool:
        """Whether to answer on Ray."""
        return self.ray or self.ray_address is not None


def on_ray(given: AnswersOf, options: RayOptions) -> AbstractContextManager[Answer]:
    """Answer with Ray actors.

    Raises UsageError if Ray is missing or the method unknown.
    """
    from paceline.drafters import check_method

    check_method(given.method)
    with common.interruptible():
        try:
            from paceline.integrations.ray_batch import Pool, answers, cluster
        except ImportError as error:
            missing = (error.name or "ray").partition(".")[0]
            raise UsageError(f"--ray needs {missing}: pip install 'paceline[ray]'") from error
    pool = Pool(options.ray_actors, options.ray_cpus, options.ray_gpus)
    threads = given.threads or max(1, int(options.ray_cpus))
    given = replace(_anywhere(given), threads=threads)

    def answered(work: Work) -> Generator[Outcome, None, None]:
        waiting: dict[int, BatchLine] = {}
        for line in read_lines(work.path):
            if work.results.has(line):
                continue
            if line.error is None:
                waiting[line.number] = line
            else:
                yield Outcome(line)
        if waiting:
            rows = [*map(row, waiting.values())]
            with closing(answers(rows, given, pool)) as found:
                yield from outcomes(found, waiting)
        if waiting:
            raise UsageError(
                f"Ray left {len(waiting)} requests unanswered: repeat the command to continue"
            )

    def answer(work: Work, heard: Heard) -> BatchCounts:
        from paceline.serve.batch_run import take_down

        # Close it here: Ray's own iterators, closed after Ray has ended, would start it again.
        with closing(answered(work)) as found:
            return take_down(found, work.results, work.known, heard)

    @contextmanager
    def how() -> Iterator[Answer]:
        with cluster(options.ray_address, pool):
            yield answer

    return how()


def _anywhere(given: AnswersOf) -> AnswersOf:
    """The same with absolute paths: actors may have another working directory."""
    folder, placement = Path(given.model), dict(given.placement)
    model = str(folder.resolve()) if folder.exists() else given.model
    if (store := placement.get("datastore")) not in (None, "own"):
        placement["datastore"] = str(Path(os.path.expanduser(store)).resolve())
    return replace(given, model=model, placement=placement)
