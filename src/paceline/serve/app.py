"""The application: endpoints and their handlers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from time import time
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from paceline import __version__
from paceline.constraints.own_thread import in_own_thread
from paceline.errors import UsageError
from paceline.serve.access import Access
from paceline.serve.bodies import checked, json_body
from paceline.serve.chat_answer import ChatAnswer
from paceline.serve.compiler import Compiler
from paceline.serve.completion_answer import CompletionAnswer
from paceline.serve.conversations import Reader
from paceline.serve.engine import Engine
from paceline.serve.errors import ApiError, bad_request, failed
from paceline.serve.handling import Handler
from paceline.serve.hosts import KnownHosts
from paceline.serve.metrics import Metrics
from paceline.serve.orders import Orders
from paceline.serve.page import add_page
from paceline.serve.schemas import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from paceline.serve.settings import ServeSettings
from paceline.serve.ticket import Order
from paceline.session import Session

__all__ = ["Server", "create_app"]


class Server:
    """A session with everything needed to answer requests.

    names: of the model in requests; the first one is used in lists.
    """

    def __init__(self, session: Session, names: Sequence[str], settings: ServeSettings) -> None:
        self.session, self.names, self.settings = session, list(names), settings
        self.metrics = Metrics(self.names[0], self._load)
        self.engine = Engine(session, settings, self.metrics)
        self.reader = Reader(session)
        self.orders = Orders(session, self.reader, settings)
        self.compiler = Compiler(session)
        self.handler = Handler(self.engine, self.compiler, settings)
        self.fingerprint = f"fp_paceline_{__version__}_{session.fingerprint[:12]}"
        self.started = int(time())

    async def stop(self) -> None:
        """Accept no more requests and end current ones; see `Engine.stop`."""
        self.compiler.close()
        # Not in the event loop's executor: whatever keeps that busy would delay the stop.
        await asyncio.wrap_future(in_own_thread(partial(self.engine.stop, self.settings.grace)))

    async def chat(self, request: Request) -> Response:
        """`POST /v1/chat/completions`."""
        body = await self._body(request)
        wanted = checked(ChatRequest, body)
        self._check_model(wanted.model)
        orders = await asyncio.to_thread(self.orders.of_chat, wanted)
        tokenizer = self.session.tokenizer
        return await self.handler.serve(
            request,
            orders,
            lambda ticket: ChatAnswer(wanted, ticket, tokenizer, self.fingerprint),
            bool(wanted.stream),
            body,
        )

    async def completions(self, request: Request) -> Response:
        """`POST /v1/completions`."""
        body = await self._body(request)
        wanted = checked(CompletionRequest, body)
        self._check_model(wanted.model)
        orders = await asyncio.to_thread(self.orders.of_completion, wanted)
        echoes = await asyncio.to_thread(self._echoes, wanted, orders)
        tokenizer = self.session.tokenizer
        return await self.handler.serve(
            request,
            orders,
            lambda ticket: CompletionAnswer(wanted, ticket, tokenizer, self.fingerprint, echoes),
            bool(wanted.stream),
            body,
        )

    async def models(self, request: Request) -> Response:
        """`GET /v1/models`."""
        return JSONResponse({"object": "list", "data": [self._model(name) for name in self.names]})

    async def model(self, request: Request) -> Response:
        """`GET /v1/models/{name}`."""
        name = request.path_params["name"]
        self._check_model(name)
        return JSONResponse(self._model(name))

    async def tokenize(self, request: Request) -> Response:
        """`POST /tokenize`, as in vLLM."""
        wanted = checked(TokenizeRequest, await self._body(request))
        if (wanted.prompt is None) == (wanted.messages is None):
            raise bad_request("give either 'prompt' or 'messages'", "prompt")
        tokens, strings = await asyncio.to_thread(self._tokens, wanted)
        answer: dict[str, Any] = {
            "count": len(tokens),
            "max_model_len": self.session.target.max_context,
            "tokens": tokens,
            "token_strs": strings,
        }
        return await asyncio.to_thread(JSONResponse, answer)

    async def detokenize(self, request: Request) -> Response:
        """`POST /detokenize`, as in vLLM."""
        wanted = checked(DetokenizeRequest, await self._body(request))
        return JSONResponse({"prompt": await asyncio.to_thread(self.reader.decode, wanted.tokens)})

    async def health(self, request: Request) -> Response:
        """`GET /health`: whether the engine runs."""
        return Response(status_code=200 if self.engine.alive else 503)

    async def ready(self, request: Request) -> Response:
        """`GET /ready`: whether requests are accepted."""
        return Response(status_code=200 if self.engine.ready else 503)

    async def version(self, request: Request) -> Response:
        """`GET /version`."""
        return JSONResponse({"version": __version__})

    async def figures(self, request: Request) -> Response:
        """`GET /metrics`, for Prometheus."""
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")

    async def state(self, request: Request) -> Response:
        """`GET /state`: the load, for the page."""
        running, waiting, cache = self._load()
        method = self.session.method if isinstance(self.session.method, str) else "custom"
        return JSONResponse(
            {"model": self.names[0], "method": method, "running": running, "waiting": waiting,
             "slots": self.settings.max_batch, "cache": cache}
        )  # fmt: skip

    async def _body(self, request: Request) -> dict[str, Any]:
        return await json_body(request, self.settings)

    def _echoes(self, wanted: CompletionRequest, orders: Sequence[Order]) -> list[str]:
        """The prompt that each text repeats; "" for none."""
        if not wanted.echo:
            return [""] * len(orders)
        given = [wanted.prompt] if isinstance(wanted.prompt, str) else wanted.prompt
        texts = [each for each in given if isinstance(each, str) for _ in range(wanted.n or 1)]
        return texts or [self.reader.decode(order.prompt) for order in orders]

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
            known = ", ".join(self.names)
            raise ApiError(
                404,
                f"unknown model {name[:100]!r}: choose one of {known}",
                param="model",
                code="model_not_found",
            )

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


def create_app(
    server: Server, keys: Sequence[str] = (), hosts: KnownHosts | None = None
) -> FastAPI:
    """The application of a server. keys, hosts: see `Access`."""

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        server.engine.start()
        yield
        await server.stop()

    # Documentation pages would load files from other servers.
    app = FastAPI(title="paceline", version=__version__, lifespan=life, docs_url=None,
                  redoc_url=None, openapi_url=None)  # fmt: skip
    _add_addresses(app, server)
    add_page(app)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(UsageError, _usage_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_middleware(Access, keys=keys, hosts=hosts)
    if server.settings.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=[server.settings.cors],
            allow_methods=["GET", "POST"],
            allow_headers=["*"],  # clients send headers of their own, such as x-stainless-os
            expose_headers=["x-request-id", "retry-after"],
        )
    return app


def _add_addresses(app: FastAPI, server: Server) -> None:
    for path, answer in (
        ("/v1/chat/completions", server.chat),
        ("/v1/completions", server.completions),
        ("/tokenize", server.tokenize),
        ("/detokenize", server.detokenize),
    ):
        app.add_route(path, answer, methods=["POST"])
    for path, answer in (
        ("/v1/models", server.models),
        ("/v1/models/{name:path}", server.model),
        ("/health", server.health),
        ("/ready", server.ready),
        ("/version", server.version),
        ("/metrics", server.figures),
        ("/state", server.state),
    ):
        app.add_route(path, answer, methods=["GET"])


async def _api_error(request: Request, error: Exception) -> Response:
    known = error if isinstance(error, ApiError) else failed()
    return JSONResponse(known.body, known.status, known.headers)


async def _usage_error(request: Request, error: Exception) -> Response:
    return await _api_error(request, bad_request(str(error)))


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    reasons = {404: "there is nothing at this address", 405: "use another method here"}
    known = ApiError(status, reasons.get(status, "this request cannot be served"))
    headers = dict(getattr(error, "headers", None) or {})
    return JSONResponse(known.body, known.status, headers)
