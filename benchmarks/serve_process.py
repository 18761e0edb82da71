"""A server process for benchmarks: started, watched and stopped."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

START_SECONDS = 600.0
STOP_SECONDS = 60.0


class ServerProcess:
    """`paceline serve` on a free port of this machine. url: its address. log: its log file."""

    def __init__(self, words: Sequence[str], log: Path) -> None:
        self.log = log
        command = [sys.executable, "-m", "paceline", "serve", "--port", "0", *words]
        began = time.monotonic()
        with log.open("w") as file:
            self._process = subprocess.Popen(command, stderr=file, stdout=subprocess.DEVNULL)
        self.url = self._listening()
        self.start_seconds = time.monotonic() - began

    @property
    def pid(self) -> int:
        return self._process.pid

    def resident_bytes(self) -> int | None:
        return resident_bytes(self.pid)

    def events(self) -> Iterator[dict[str, Any]]:
        """The JSON lines of its log."""
        for line in self.log.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue

    def stop(self) -> dict[str, Any]:
        """Stop it with SIGTERM, as operators do; return its exit code and how long that took."""
        began = time.monotonic()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        return {"exit_code": code, "seconds": round(time.monotonic() - began, 2)}

    def _listening(self) -> str:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self._process.poll() is None:
            for event in self.events():
                if event.get("event") == "listening" and _healthy(event["url"]):
                    return str(event["url"])
            time.sleep(0.05)
        self._process.kill()
        self._process.wait()
        raise SystemExit(f"the server did not start:\n{self.log.read_text()[-2000:]}")


def _healthy(url: str) -> bool:
    try:
        with urlopen(f"{url}/health", timeout=10) as response:  # noqa: S310
            return bool(response.status == 200)
    except OSError:
        return False


@contextmanager
def server(words: Sequence[str], log: Path) -> Iterator[ServerProcess]:
    """A server that is always stopped at the end."""
    process = ServerProcess(words, log)
    try:
        yield process
    finally:
        process.stop()


def resident_bytes(pid: int) -> int | None:
    """Main memory that a process holds; None if unknown."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return None
    return next(
        (int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS")),
        None,
    )
