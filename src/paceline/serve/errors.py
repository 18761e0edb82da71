"""Errors as OpenAI's clients expect them: a status, and an object that explains it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = [
    "ApiError",
    "bad_request",
    "compilers_stuck",
    "cut_off",
    "error_body",
    "failed",
    "out_of_time",
    "slow_constraint",
    "stopping",
    "too_many",
]

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_SHED_RETRY = 1
_STUCK_RETRY = 10


class ApiError(Exception):
    """A request that cannot be answered.

    status: of the response, if it has not begun. param: the field at fault. code: for programs.
    headers: of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The body of the response."""
        return error_body(self.status, self.message, self.param, self.code)


def error_body(
    status: int, message: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """OpenAI's error object, always with all of its keys."""
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """The request itself is at fault; a retry would not help."""
    return ApiError(400, message, param=param, code=code)


def too_many() -> ApiError:
    """The queue is full."""
    return ApiError(
        429,
        "too many requests are waiting: try again in a moment",
        code="queue_full",
        headers={"Retry-After": str(_SHED_RETRY)},
    )


def slow_constraint() -> ApiError:
    """A constraint is given up before it is compiled."""
    return bad_request(
        "the constraint takes too long to compile: use a simpler schema, pattern or grammar",
        code="slow_constraint",
    )


def compilers_stuck() -> ApiError:
    """No constraint can be compiled now."""
    return ApiError(
        503,
        "earlier constraints take too long to compile, so new ones cannot begin: try again later "
        "or leave the constraint out",
        code="compilers_stuck",
        headers={"Retry-After": str(_STUCK_RETRY)},
    )


def stopping() -> ApiError:
    """The server accepts no new requests."""
    return ApiError(
        503,
        "the server is stopping: try again later",
        code="stopping",
        headers={"Retry-After": str(_SHED_RETRY)},
    )


def cut_off() -> ApiError:
    """The grace period of a stop is over."""
    return ApiError(503, "the server stopped before the answer was complete", code="stopping")


def out_of_time(seconds: float) -> ApiError:
    """A request took too long. A retry would too, so clients are told not to retry."""
    return ApiError(
        408,
        f"the answer was not complete after {seconds:g} seconds: ask for fewer tokens",
        code="timeout",
        headers={"X-Should-Retry": "false"},
    )


def failed() -> ApiError:
    """An internal error; details go to the log, not to the client."""
    return ApiError(500, "the server failed to answer this request", code="internal_error")
