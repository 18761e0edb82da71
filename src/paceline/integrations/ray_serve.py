"""`paceline serve` on Ray: the same endpoints, on any number of replicas.

    serve run paceline.integrations.ray_serve:app model=smollm2-135m min_replicas=2

    HTTP ── Ray's proxy ── Front ── Replica (a session and its engine), Replica, …

Needs `pip install paceline[ray]`. Replicas read keys, if any, from their PACELINE_API_KEY.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp, Message

from paceline.errors import UsageError
from paceline.integrations.ray_front import Front
from paceline.serve.inside import Query, ask
from paceline.serve.settings import ServeSettings, keys_of_environment, public_name

_REPLICA, _FRONT = "Replica", "Front"
_MOST_AT_FRONT = 10_000


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class ReplicaArguments(ServeSettings):
    """Arguments of an application, in addition to the fields of `ServeSettings`.

    model, method, weights, device, dtype: see `paceline.load`. alias: other names of the model,
    separated by commas. threads: of a replica; `num_cpus` by default.
    min_replicas, max_replicas: if these differ, the number follows the load.
    target: requests that a replica should have in progress; `max_batch` by default.
    """

    model: str = "smollm2-135m"
    method: str = "auto"
    alias: str = ""
    weights: str = "auto"
    device: str | None = None
    dtype: str | None = None
    num_cpus: Annotated[float, Field(gt=0)] = 1.0
    num_gpus: Annotated[float, Field(ge=0)] = 0.0
    threads: Annotated[int | None, Field(ge=1)] = None
    min_replicas: Annotated[int, Field(ge=1)] = 1
    max_replicas: Annotated[int | None, Field(ge=1)] = None
    target: Annotated[float | None, Field(gt=0)] = None
    upscale_delay_s: float = 30.0
    downscale_delay_s: float = 600.0


class Replica:
    """One session with its engine. Raises errors in the arguments."""

    def __init__(self, given: ReplicaArguments) -> None:
        # Imported here because the process that builds the application does not need these.
        import torch

        from paceline.api import load
        from paceline.serve.app import Server, create_app
        from paceline.serve.heap import share_one_heap
        from paceline.serve.logs import log_to_stderr

        share_one_heap()
        log_to_stderr()
        keys = keys_of_environment()  # before a model is loaded in vain
        torch.set_num_threads(given.threads or max(1, int(given.num_cpus)))
        session = load(
            given.model,
            given.method,
            weights=given.weights,
            device=given.device,
            dtype=given.dtype,
            datastore=False,  # see `paceline.cli.serve`
        )
        names = [public_name(given.model), *filter(None, map(str.strip, given.alias.split(",")))]
        self._server = Server(session, names, given, keys)
        self._app: ASGIApp = create_app(self._server)
        self._server.engine.start()

    async def answer(self, query: Query) -> AsyncIterator[Message]:
        """Yield the messages of the response; cancelling this hangs up."""
        async with aclosing(ask(self._app, query)) as parts:
            async for part in parts:
                yield part

    def check_health(self) -> None:
        """Called by Ray, which replaces the replica if this raises."""
        if not self._server.engine.alive:
            raise RuntimeError("the engine has stopped")


def app(given: Mapping[str, Any]) -> serve.Application:
    """Build the application from arguments of `serve run` or of a configuration file: fields of
    `ReplicaArguments` and `ServeSettings`. Raises ValueError or UsageError for unknown fields and
    for values out of range."""
    # On the command line all values are strings, which pydantic converts.
    arguments = TypeAdapter(ReplicaArguments).validate_python(dict(given))
    most = arguments.max_replicas or arguments.min_replicas
    if most < arguments.min_replicas:
        raise UsageError(f"max_replicas must be at least min_replicas, got {most}")
    replicas = serve.deployment(Replica).options(
        name=_REPLICA,
        ray_actor_options={"num_cpus": arguments.num_cpus, "num_gpus": arguments.num_gpus},
        # A replica answers 429 itself when its queue is full.
        max_ongoing_requests=arguments.max_batch + arguments.max_queue + 1,
        graceful_shutdown_timeout_s=arguments.grace,
        **_scale(arguments, most),
    )
    front = serve.deployment(serve.ingress(_front(arguments))()).options(
        name=_FRONT, max_ongoing_requests=_MOST_AT_FRONT, ray_actor_options={"num_cpus": 0}
    )
    return front.bind(replicas.bind(arguments))


def _scale(arguments: ReplicaArguments, most: int) -> dict[str, Any]:
    if most == arguments.min_replicas:
        return {"num_replicas": most}
    return {
        "autoscaling_config": {
            "min_replicas": arguments.min_replicas,
            "max_replicas": most,
            "target_ongoing_requests": arguments.target or arguments.max_batch,
            "upscale_delay_s": arguments.upscale_delay_s,
            "downscale_delay_s": arguments.downscale_delay_s,
        }
    }


def _front(settings: ServeSettings) -> Any:
    """A function that builds the front's application in the process where it runs."""

    def build() -> ASGIApp:
        name = serve.get_replica_context().app_name
        handle = serve.get_deployment_handle(_REPLICA, app_name=name).options(stream=True)

        async def replicas(query: Query) -> AsyncGenerator[Message, None]:
            parts = handle.answer.remote(query)
            try:
                async for part in parts:
                    yield part
            finally:
                parts.cancel()

        lost = (RayActorError, DeploymentUnavailableError)
        limits = settings.max_body, settings.body_limit
        front = Front(replicas, lost, (BackPressureError,), *limits)
        return Starlette(routes=[Route("/{path:path}", front)])

    return build
