"""`paceline batch --ray` on Ray Data: actors, each with a model, answer the lines of a file.

    lines ── tasks of a few lines each ── Answering (a session and its engine), Answering, …

Needs `pip install paceline[ray]`. If an actor dies, another one runs its task, and Ray restarts it.
"""

from __future__ import annotations

import logging
import math
import os
import socket
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Any

import ray
import ray.data
from ray.exceptions import RayError

from paceline.errors import UsageError
from paceline.integrations.ray_actor import Answering
from paceline.serve.batch_lines import AnswersOf, Batch

_MOST_TASKS = 2000
_AHEAD = 2
_NEVER = -1
_PATIENCE = 20.0
"""Seconds."""


@dataclass(frozen=True)
class Pool:
    """Number of actors, and the resources of each.

    num_cpus, num_gpus: what Ray reserves for one actor, whatever it uses.
    """

    actors: int = 1
    num_cpus: float = 1.0
    num_gpus: float = 0.0


@contextmanager
def cluster(address: str | None, pool: Pool) -> Iterator[None]:
    """Connect to Ray within the block. address: of a running cluster; None for the one that
    RAY_ADDRESS names or that runs on this machine, or else a new one.

    Raises UsageError if it cannot be reached, or is too small for one actor.
    """
    named = address or os.environ.get("RAY_ADDRESS", "")
    try:
        _check_answers(named)
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="warning",
            include_dashboard=False,
        )
    except (OSError, ValueError, RuntimeError, RayError) as error:
        place = f" at {named}" if named else ""
        raise UsageError(f"cannot use Ray{place}: {_first_line(error)}") from error
    try:
        _check_room(pool)
        yield
    except RayError as error:
        raise UsageError(
            f"Ray failed ({_first_line(error)}): repeat the command to continue"
        ) from error
    finally:
        ray.shutdown()


def answers(
    rows: Sequence[dict[str, str]], given: AnswersOf, pool: Pool
) -> Generator[Batch, None, None]:
    """Yield the actors' answers as they arrive. rows: see `batch_lines.row`."""
    # One line per task, so that every answer is written at once, unless that makes too many tasks.
    lines = min(max(1, len(rows) // _MOST_TASKS), given.max_batch)
    at_once = max(1, _AHEAD * given.max_batch // lines)
    _quiet()
    found = ray.data.from_items(rows, override_num_blocks=math.ceil(len(rows) / lines)).map_batches(
        Answering,
        fn_constructor_args=(given,),
        batch_size=None,
        num_cpus=pool.num_cpus,
        num_gpus=pool.num_gpus,
        **_actors(pool.actors, at_once),
    )
    yield from found.iter_batches(batch_size=None, prefetch_batches=0)


def _actors(actors: int, at_once: int) -> dict[str, Any]:
    """Arguments of `map_batches` for actors that each work on `at_once` tasks at a time."""
    strategy = ray.data.ActorPoolStrategy
    own = {"size": actors, "max_tasks_in_flight_per_actor": at_once}
    if "max_concurrent_calls_per_actor" in signature(strategy).parameters:
        return {"compute": strategy(**own, max_concurrent_calls_per_actor=at_once)}
    return {"compute": strategy(**own), "max_concurrency": at_once}  # an older Ray


def _quiet() -> None:
    """Silence Ray: the command has its own progress bar."""
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context: Any = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    if hasattr(context, "print_on_execution_start"):
        context.print_on_execution_start = False
    if hasattr(context, "execution_no_progress_timeout_s"):
        context.execution_no_progress_timeout_s = _NEVER  # requests have their own limits


def _check_answers(address: str) -> None:
    """Raise OSError if nothing listens at the address. Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()


def _check_room(pool: Pool) -> None:
    """Raise UsageError if no actor fits. Ray would wait for ever."""
    room = ray.cluster_resources()
    for name, wanted in (("CPU", pool.num_cpus), ("GPU", pool.num_gpus)):
        if wanted > room.get(name, 0):
            raise UsageError(
                f"an actor needs {wanted:g} {name}, but all of Ray has {room.get(name, 0):g}: "
                "lower --ray-cpus or --ray-gpus"
            )


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
