"""The page at `/`: files of the package only, nothing from other servers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, Response

__all__ = ["add_page"]

_FOLDER = Path(__file__).parent / "static"
_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def add_page(app: FastAPI) -> None:
    """Serve the page's files."""
    for path, (name, kind) in _FILES.items():
        app.add_route(path, _sender(name, kind), methods=["GET"])


def _sender(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def send(request: Request) -> Response:
        return FileResponse(_FOLDER / name, media_type=kind, headers=_HEADERS)

    return send
