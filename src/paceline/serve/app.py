"""The application: endpoints and their handlers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from time import monotonic, time
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect

from paceline import __version__
from paceline.constraints.own_thread import in_own_thread
from paceline.errors import UsageError
from paceline.serve.access import Access
from paceline.serve.bodies import checked, json_body
from paceline.serve.compiler import Compiler
from paceline.serve.conversations import Reader
from paceline.serve.engine import Engine
from paceline.serve.errors import ApiError, bad_request, shown
from paceline.serve.handling import Handler
from paceline.serve.metrics import Metrics
from paceline.serve.orders import Orders
from paceline.serve.responses import ResponsesRequest
from paceline.serve.schemas import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TextRequest,
    TokenizeRequest,
)
from paceline.serve.settings import ServeSettings, public_method
from paceline.serve.ticket import Order
from paceline.session import Session

_CLIENT_LEFT = 499
_NOT_HERE = (
    "there is nothing at this address: texts are written at POST /v1/chat/completions, "
    "/v1/responses and /v1/completions"
)
"""Several clients ask for embeddings, or for an earlier response."""

R = TypeVar("R", bound=TextRequest)
_Answer = Callable[[Request], Awaitable[Response]]

# The page at `/`: files of the package only, nothing from other servers.
_PAGE = Path(__file__).parent / "static"
_PAGE_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
_PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class Server:
    """A session with everything needed to answer requests.

    names: of the model in requests; the first one is used in lists. keys, hosts: see `Access`.
    """

    def __init__(
        self,
        session: Session,
        names: Sequence[str],
        settings: ServeSettings,
        keys: Sequence[str] = (),
        hosts: frozenset[str] | None = None,
    ) -> None:
        self.session, self.names, self.settings = session, [*dict.fromkeys(names)], settings
        self.keys, self.hosts = keys, hosts
        self.metrics = Metrics(self.names[0], self._load)
        self.engine = Engine(session, settings, self.metrics)
        self.reader = Reader(session)
        self.orders = Orders(session, self.reader, settings)
        self.compiler = Compiler(session)
        fingerprint = f"fp_paceline_{__version__}_{session.fingerprint[:12]}"
        self.handler = Handler(self.engine, self.compiler, settings, session.tokenizer, fingerprint)
        self.started = int(time())

    async def stop(self) -> None:
        """Accept no more requests and end current ones; see `Engine.stop`."""
        self.compiler.close()
        # Not in the event loop's executor: whatever keeps that busy would delay the stop.
        await asyncio.wrap_future(in_own_thread(self.engine.stop))

    def addresses(self) -> list[tuple[str, str, _Answer]]:
        """Every endpoint: method, path, and what answers. The tokenizer's are vLLM's, the metrics
        are for Prometheus, and the state is for the page."""
        orders, written = self.orders, self._written
        return [
            ("POST", "/v1/chat/completions", partial(written, ChatRequest, orders.of_chat)),
            ("POST", "/v1/responses", partial(written, ResponsesRequest, orders.of_response)),
            ("POST", "/v1/completions", partial(written, CompletionRequest, orders.of_completion)),
            ("POST", "/tokenize", self._tokenize),
            ("POST", "/detokenize", self._detokenize),
            ("GET", "/v1/models", self._models),
            ("GET", "/v1/models/{name:path}", self._one_model),
            ("GET", "/health", self._health),
            ("GET", "/ready", self._ready),
            ("GET", "/version", self._version),
            ("GET", "/metrics", self._figures),
            ("GET", "/state", self._state),
            *(("GET", path, partial(_page_file, *file)) for path, file in _PAGE_FILES.items()),
        ]

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model(name) for name in self.names]})

    async def _one_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        self._check_model(name)
        return JSONResponse(self._model(name))

    async def _tokenize(self, request: Request) -> Response:
        wanted = checked(TokenizeRequest, await json_body(request, self.settings))
        if (wanted.prompt is None) == (wanted.messages is None):
            raise bad_request("give either 'prompt' or 'messages'", "prompt")
        tokens, strings = await asyncio.to_thread(self._tokens, wanted)
        most = self.session.target.max_context
        counted = {"count": len(tokens), "max_model_len": most}
        answer = {**counted, "tokens": tokens, "token_strs": strings}
        return await asyncio.to_thread(JSONResponse, answer)

    async def _detokenize(self, request: Request) -> Response:
        wanted = checked(DetokenizeRequest, await json_body(request, self.settings))
        most = 4 * (self.session.target.max_context or 1 << 20)
        if len(wanted.tokens) > most:
            raise bad_request(f"give at most {most} tokens, got {len(wanted.tokens)}", "tokens")
        text = await asyncio.to_thread(self.reader.decode, wanted.tokens)
        return await asyncio.to_thread(JSONResponse, {"prompt": text})

    async def _health(self, request: Request) -> Response:
        return Response(status_code=200 if self.engine.alive else 503)

    async def _ready(self, request: Request) -> Response:
        return Response(status_code=200 if self.engine.ready else 503)

    async def _version(self, request: Request) -> Response:
        return JSONResponse({"version": __version__})

    async def _figures(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")

    async def _state(self, request: Request) -> Response:
        running, waiting, cache = self._load()
        method = public_method(self.session.method)
        return JSONResponse(
            {"model": self.names[0], "method": method, "running": running, "waiting": waiting,
             "slots": self.settings.max_batch, "cache": cache}
        )  # fmt: skip

    async def _written(
        self, shape: type[R], orders_of: Callable[[R], list[Order]], request: Request
    ) -> Response:
        arrived, body = monotonic(), await json_body(request, self.settings)
        wanted = checked(shape, body)
        self._check_model(wanted.model)
        orders = await asyncio.to_thread(orders_of, wanted)
        try:
            return await self.handler.serve(request, wanted, orders, body, arrived)
        except ClientDisconnect:
            return Response(status_code=_CLIENT_LEFT)

    def _tokens(self, wanted: TokenizeRequest) -> tuple[list[int], list[str] | None]:
        """Token ids, and the text of each if requested."""
        if wanted.messages is not None:
            tokens = self.reader.chat(wanted.messages, wanted.tools or [])
        else:
            tokens = self.reader.plain(wanted.prompt or "", wanted.add_special_tokens)
        if not wanted.return_token_strs:
            return tokens, None
        return tokens, [self.reader.decode([token]) for token in tokens]

    def _check_model(self, name: str) -> None:
        if name not in self.names:
            message = f"unknown model {name[:100]!r}: choose one of {', '.join(self.names)}"
            raise ApiError(404, message, param="model", code="model_not_found")

    def _model(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self.started,
            "owned_by": "paceline",
            "max_model_len": self.session.target.max_context,
        }

    def _load(self) -> tuple[int, int, float]:
        running, waiting = self.engine.load
        cache = self.session.target.describe().report.get("cache") or {}
        slots = cache.get("slots") or 0
        return running, waiting, cache.get("in_use", 0) / slots if slots else 0.0


def create_app(server: Server) -> FastAPI:
    """The application of a server."""

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        server.engine.start()
        yield
        await server.stop()

    # Documentation pages would load files from other servers. A redirect for a slash at the end
    # would lead around a proxy: to HTTP without TLS, and without the prefix of a path.
    app = FastAPI(title="paceline", version=__version__, lifespan=life, docs_url=None,
                  redoc_url=None, openapi_url=None, redirect_slashes=False)  # fmt: skip
    for method, path, answer in server.addresses():
        app.add_route(path, answer, methods=[method])
    for kind in (ApiError, UsageError, HTTPException):
        app.add_exception_handler(kind, _refused)
    app.add_middleware(Access, keys=server.keys, hosts=server.hosts)
    if server.settings.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=[server.settings.cors],
            allow_methods=["GET", "POST"],
            allow_headers=["*"],  # clients send headers of their own, such as x-stainless-os
            expose_headers=["x-request-id", "retry-after"],
        )
    return app


async def _page_file(name: str, kind: str, request: Request) -> Response:
    return FileResponse(_PAGE / name, media_type=kind, headers=_PAGE_HEADERS)


async def _refused(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        reasons = {404: _NOT_HERE, 405: f"use {(error.headers or {}).get('Allow')} here"}
        reason = reasons.get(error.status_code, "this request cannot be served")
        error = ApiError(error.status_code, reason, headers=error.headers)
    return shown(error).response
