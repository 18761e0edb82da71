"""Errors as OpenAI's clients expect them: a status, and an object that explains it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

from paceline.errors import UsageError

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


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
        """OpenAI's error object, always with all of its keys."""
        usual = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = _TYPES.get(self.status, usual)
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    @property
    def response(self) -> JSONResponse:
        """The response, if none has begun."""
        return JSONResponse(self.body, self.status, self.headers)


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """The request itself is at fault; a retry would not help."""
    return ApiError(400, message, param=param, code=code)


def unsupported(param: str, instead: str, beside: str = "") -> ApiError:
    """A field that would change the answer, so ignoring it would be wrong."""
    message = f"'{param}'{beside} is not supported: {instead}"
    return bad_request(message, param, "unsupported_parameter")


def for_now(status: int, message: str, code: str, seconds: int = 1) -> ApiError:
    """A retry after so many seconds may well succeed."""
    return ApiError(status, message, code=code, headers={"Retry-After": f"{seconds}"})


def too_many() -> ApiError:
    """The queue is full."""
    return for_now(429, "too many requests are waiting: try again in a moment", "queue_full")


def stopping() -> ApiError:
    """The server accepts no new requests."""
    return for_now(503, "the server is stopping: try again later", "stopping")


def failed() -> ApiError:
    """An internal error; details go to the log, not to the client."""
    return ApiError(500, "the server failed to answer this request", code="internal_error")


def shown(error: BaseException) -> ApiError:
    """What a client is told of an error."""
    if isinstance(error, ApiError):
        return error
    return bad_request(str(error)) if isinstance(error, UsageError) else failed()
