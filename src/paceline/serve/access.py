"""Access control, an id for every response, and the answer to requests that fail. Pure ASGI, so
streams pass untouched."""

from __future__ import annotations

import hmac
import logging
import re
from collections.abc import Sequence
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.serve.errors import ApiError, failed
from paceline.serve.hosts import KnownHosts
from paceline.serve.logs import log

__all__ = ["Access"]

_PROTECTED = ("/v1/", "/tokenize", "/detokenize")
_PLAIN_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)


class Access:
    """Admits requests that carry one of the keys, and gives each request an id.

    keys: any one is enough; without keys, all requests are admitted. Health, metrics and the page
    need none. hosts: accepted in the Host header of any request; None: all.
    """

    def __init__(
        self, app: ASGIApp, keys: Sequence[str] = (), hosts: KnownHosts | None = None
    ) -> None:
        self._app, self._hosts = app, hosts
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        name = given if _PLAIN_ID.fullmatch(given) else f"req_{uuid4().hex}"
        scope.setdefault("state", {})["request_id"] = name

        begun = False

        async def named(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                MutableHeaders(scope=message)["x-request-id"] = name
            await send(message)

        refusal = self._refusal(scope, headers)
        app: ASGIApp = self._app if refusal is None else refusal.response
        try:
            await app(scope, receive, named)
        except Exception as error:
            if begun:
                raise
            # Left to Starlette, the answer would lack the headers that are added here and for
            # other origins, and the connection would close under the client's next request.
            log("request failed", level=logging.ERROR, error=error, request=name)
            await failed().response(scope, receive, named)

    def _refusal(self, scope: Scope, headers: Headers) -> ApiError | None:
        if self._hosts and (stranger := self._hosts.stranger(headers.getlist("host"))):
            name = stranger[:100]
            message = f"this server is not known as {name!r}: if it should be, start it with --allowed-host {name}"  # fmt: skip
            return ApiError(403, message, code="host_not_allowed")
        protected = scope["path"].startswith(_PROTECTED) and scope["method"] != "OPTIONS"
        if not (self._keys and protected):
            return None
        authorization = headers.get("authorization", "")
        scheme, _, key = authorization.partition(" ")
        given = key.strip(" \t").encode("latin-1")  # as headers are decoded
        # Compare with every key, so that timing does not reveal which one almost matched.
        right = [hmac.compare_digest(given, known) for known in self._keys]
        if scheme.lower() == "bearer" and any(right):
            return None
        message = "wrong API key" if given else "no API key: send 'Authorization: Bearer KEY'"
        wanted = {"WWW-Authenticate": "Bearer"}
        return ApiError(401, message, code="invalid_api_key", headers=wanted)
