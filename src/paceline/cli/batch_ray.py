"""`paceline batch --ray`: the same work by Ray actors, with all answers in one file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from math import isfinite
from pathlib import Path

from paceline.cli import common
from paceline.cli.flags import option
from paceline.errors import UsageError
from paceline.serve.batch_lines import AnswersOf, BatchLine, Outcome, outcomes, read_lines, row
from paceline.serve.batch_results import Results

_PATHS = ("datastore", "draft", "parts", "phrases", "spill")
"""Settings of methods that may name a file or folder."""
_WORDS = ("none", "self")
"""Values of these that name none."""


Answer = Callable[[Path, Results], None]
"""Answers all lines of a batch file that have no result, and writes each answer to the results."""


@dataclass(frozen=True)
class RayOptions:
    """Whether to answer on Ray, and on how much of it; see `ray_batch.cluster` and `Pool`.

    Raises UsageError for the other options if Ray is not wanted: they would be ignored.
    """

    ray: bool = option(False, "Answer on Ray: on a running cluster, or else a new one.")
    ray_address: str | None = option(None, "Ray cluster elsewhere, e.g. ray://HOST:10001.")
    ray_actors: int = option(1, "Number of actors; each loads the model.", min=1)
    ray_cpus: float = option(1.0, "CPUs per actor, and default of --threads.", min=0.0)
    ray_gpus: float = option(0.0, "GPUs per actor.", min=0.0)

    def __post_init__(self) -> None:
        given = [each.name for each in fields(self) if getattr(self, each.name) != each.default]
        if given and not self.wanted:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise UsageError(f"{flags} would be ignored without Ray: add --ray")

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
    if not (isfinite(options.ray_cpus) and isfinite(options.ray_gpus)):
        raise UsageError("--ray-cpus and --ray-gpus must be finite numbers")
    pool = Pool(options.ray_actors, options.ray_cpus, options.ray_gpus)
    threads = given.threads or max(1, int(options.ray_cpus))
    given = replace(_anywhere(given), threads=threads)

    def answer(path: Path, results: Results) -> None:
        waiting: dict[int, BatchLine] = {}
        for line in results.unanswered(read_lines(path)):
            if line.error is None:
                waiting[line.number] = line
            else:
                results.write(Outcome(line))
        if waiting:
            rows = [*map(row, waiting.values())]
            # Close it here: Ray's own iterators, closed after Ray has ended, would start it again.
            with closing(answers(rows, given, pool)) as found:
                for outcome in outcomes(found, waiting):
                    results.write(outcome)
        if waiting:
            raise UsageError(
                f"Ray left {len(waiting)} requests unanswered: repeat the command to continue"
            )

    @contextmanager
    def how() -> Iterator[Answer]:
        with cluster(options.ray_address, pool):
            yield answer

    return how()


def _anywhere(given: AnswersOf) -> AnswersOf:
    """The same with absolute paths: actors may have another working directory."""
    from paceline.drafters.known_texts import NO_DATASTORE
    from paceline.models.registry import ALIASES

    folder, placement = Path(given.model), dict(given.placement)
    here = given.model not in ALIASES and folder.exists()
    model = str(folder.resolve()) if here else given.model
    if (store := placement.get("datastore")) not in (None, "", "own", NO_DATASTORE):
        placement["datastore"] = str(Path(os.path.expanduser(store)).resolve())
    method = _method_anywhere(given.method)
    return replace(given, model=model, method=method, placement=placement)


def _method_anywhere(method: str) -> str:
    """The method with absolute paths in its settings, those of methods inside it included."""
    from paceline.drafters import with_settings
    from paceline.drafters.settings import parse_method
    from paceline.models.registry import ALIASES

    _, written = parse_method(method)
    changed = {}
    for name, value in written.items():
        path = os.path.expanduser(value)
        # A word such as `self` or a method's name may also be that of a folder here.
        named = os.sep in value or (name in _PATHS and value not in (*_WORDS, *ALIASES))
        if named and os.path.exists(path):
            changed[name] = os.path.abspath(path)
        elif ":" in value:
            with suppress(UsageError):  # then it is no method
                changed[name] = _method_anywhere(value)
    return with_settings(method, changed)
