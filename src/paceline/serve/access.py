"""Access control, an id for every response, and the answer to requests that fail. Pure ASGI, so
streams pass untouched.

Any web page can make its host name resolve to 127.0.0.1 after it is loaded (DNS rebinding). The
browser then treats a server that listens on this machine only as the page's own origin, and only
the Host header reveals it.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.errors import UsageError
from paceline.serve.errors import ApiError, failed
from paceline.serve.logs import log_error

_PROTECTED = ("/v1/", "/tokenize", "/detokenize")
_PROBES = ("/health", "/ready")
"""Kubernetes and load balancers ask here by the server's address, and a page learns nothing that a
refusal would not tell it."""
_PLAIN_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)

_NAME = re.compile(r"[^\s:/@\[\]]+")
_HEADER = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::[0-9]*)?")


class Access:
    """Admits requests that carry one of the keys, and gives each request an id.

    keys: any one is enough; without keys, all requests are admitted. Health, metrics and the page
    need none. hosts: accepted in the Host header of any request but for health; None: all.
    """

    def __init__(
        self, app: ASGIApp, keys: Sequence[str] = (), hosts: frozenset[str] | None = None
    ) -> None:
        self._app, self._hosts = app, hosts
        # Bytes of the environment that are not UTF-8 are surrogates.
        self._keys = [key.encode(errors="surrogateescape") for key in keys]

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
            log_error("request failed", error=error, request=name)
            await failed().response(scope, receive, named)

    def _refusal(self, scope: Scope, headers: Headers) -> ApiError | None:
        hosts = None if scope["path"] in _PROBES else self._hosts
        if hosts is not None and (name := stranger(headers.getlist("host"), hosts)):
            name = name[:100]
            message = f"this server is not known as {name!r}: if it should be, start it with --allowed-host {name}"  # fmt: skip
            return ApiError(403, message, code="host_not_allowed")
        protected = scope["path"].startswith(_PROTECTED) and scope["method"] != "OPTIONS"
        if not (self._keys and protected):
            return None
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given = key.strip(" \t").encode("latin-1")  # as headers are decoded
        # Compare with every key, so that timing does not reveal which one almost matched.
        right = [hmac.compare_digest(given, known) for known in self._keys]
        if scheme.lower() == "bearer" and any(right):
            return None
        message = "wrong API key" if given else "no API key: send 'Authorization: Bearer KEY'"
        wanted = {"WWW-Authenticate": "Bearer"}
        return ApiError(401, message, code="invalid_api_key", headers=wanted)


def stranger(given: Iterable[str], known: frozenset[str]) -> str | None:
    """The first of a request's Host headers, without its port, that is neither known nor loopback,
    which is always allowed. A request without the header does not come from a browser, and so from
    no page."""
    names = filter(None, map(_name, given))
    return next((each for each in names if each not in known and not is_loopback(each)), None)


def known_hosts(address: str, host: str, allowed: Sequence[str]) -> frozenset[str] | None:
    """The names to check requests against, if the address is loopback or names are given; None for
    no check. Raises UsageError for a name with a scheme or a port.

    address: that the server's socket is bound to. host: the same as given by the user. allowed:
    further names; "*" for any.
    """
    for each in allowed:
        if each != "*" and not (_NAME.fullmatch(each) or _address(_bare(each))):
            raise UsageError(
                f"an allowed host must be a name or address without scheme or port, got {each!r}"
            )
    if "*" in allowed or not (allowed or is_loopback(address)):
        return None
    return frozenset(map(_bare, [host, *allowed]))


def is_loopback(name: str) -> bool:
    """Whether a name without a port, or an address, always means the machine itself."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = _address(name)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address is not None and (mapped or address).is_loopback


def _address(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name)
    except ValueError:
        return None


def _name(host: str) -> str:
    """A Host header without its port, if any."""
    found = _HEADER.fullmatch(host.strip())
    return _bare(found[1] if found else host)


def _bare(name: str) -> str:
    """A name in the form in which names are compared."""
    return name.strip().removeprefix("[").removesuffix("]").rstrip(".").lower()
