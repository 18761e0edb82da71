"""The server's log: one JSON object per line, without user text unless that is requested."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

_logger = logging.getLogger("paceline.serve")


def log(event: str, **what: Any) -> None:
    """Write one line about what went as it should."""
    _logger.info(event, extra={"what": what})


def log_error(event: str, error: BaseException | None = None, **what: Any) -> None:
    """Write one line about what did not. error: logged with its traceback."""
    _logger.error(event, extra={"what": what}, exc_info=error)


def log_to_stderr(least: int = logging.INFO) -> None:
    """Write the log to standard error, from this level on, with others' warnings."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    for name in ("paceline.serve", "uvicorn.error", "asyncio"):
        logger, level = logging.getLogger(name), least if name == _logger.name else logging.WARNING
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "what", {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        try:
            return _written(line)
        except RecursionError:  # a request may be nested as deeply as Python can just read
            line.pop("asked", None)
            return _written(line)


def _written(line: dict[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False, default=str)
