"""`paceline serve` as its user meets it."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.cli.running import Command, runner
from tests.serve.live import serving, wait_for
from tests.tiny import save_tiny_llama

FEW = 512
resource: Any = pytest.importorskip("resource", reason="of POSIX")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `paceline` in this process."""
    return runner(monkeypatch, capsys)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


def test_a_server_answers_logs_and_stops(tiny: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("a-good-key\nanother-key\n")
    words = ("--api-key", keys, "--alias", "gpt-4o", "--allowed-host", "box.example")
    with serving(tiny, *words) as (process, url):
        # By the names of others nobody gets in.
        named = [
            httpx.get(f"{url}/version", headers={"Host": name}).status_code
            for name in ("evil.example", "box.example:8000", "localhost")
        ]
        assert named == [403, 200, 200]
        headers = {"Authorization": "Bearer another-key"}
        body: dict[str, Any] = {"model": "gpt-4o", "prompt": "secret words", "max_tokens": 4}
        assert httpx.post(f"{url}/v1/completions", json=body).status_code == 401
        answer = httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=60)
        assert answer.status_code == 200
        names = [
            model["id"] for model in httpx.get(f"{url}/v1/models", headers=headers).json()["data"]
        ]
        assert names == ["tiny", "gpt-4o"]
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
    assert process.returncode == 0
    # Without the C library a note comes first.
    lines = [
        json.loads(line) for line in log.splitlines() if not line.startswith("passes are slow")
    ]
    events = [line["event"] for line in lines]
    assert events[0] == "listening"
    assert events[-2:] == ["request", "stopping"]
    assert lines[-2]["request"] == answer.headers["x-request-id"]
    assert isinstance(lines[-2]["seed"], int)
    assert "secret words" not in log
    assert "good-key" not in log


@contextmanager
def few_files() -> Iterator[None]:
    """Processes started meanwhile may at first open only a few."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_second_ctrl_c_cuts_requests_off_without_a_traceback(tiny: Path) -> None:
    body = {"model": "tiny", "prompt": "a", "max_tokens": 3000, "ignore_eos": True, "stream": True}
    with few_files(), serving(tiny) as (process, url):
        if sys.platform == "linux":
            soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
            assert soft == hard > FEW  # each connection is one
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.send_signal(signal.SIGINT)
            wait_for(lambda: httpx.get(f"{url}/ready").status_code == 503)
            process.send_signal(signal.SIGINT)
            assert "the server stopped before" in [line for line in lines if line][-1]
        _, log = process.communicate(timeout=60)
    assert "cut off" in log and "Traceback" not in log


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--max-batch", 0], "max_batch must be at least 1"),
        (["--time-limit", 0], "time_limit must be at least 1"),
        (["--api-key", "/nowhere/keys"], "cannot read the file of keys"),
        (["--method", "nothing"], "nothing"),
        (["--port", 70000], "65535"),
        (["--host", ""], "the host is empty"),
        (["--host", "192.0.2.1"], "cannot listen on 192.0.2.1"),
        (["--allowed-host", "http://box:80"], "must be a name or address"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(
    command: Command, tiny: Path, words: list[Any], reason: str
) -> None:
    ran = command("serve", "--model", tiny, "--port", 0, *words)
    assert ran.code == 2
    assert reason in ran.said
    assert "Traceback" not in ran.err


def test_keys_must_be_worth_the_name(
    command: Command, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("\n")
    assert "empty" in command("serve", "--model", tiny, "--api-key", keys).said
    keys.write_text("a-good-key\nanother long-key\n")
    assert "blanks inside" in command("serve", "--model", tiny, "--api-key", keys).said
    monkeypatch.setenv("PACELINE_API_KEY", "short")
    assert "at least 8 characters" in command("serve", "--model", tiny).said
    monkeypatch.setenv("PACELINE_API_KEY", " \n")
    assert "blanks and no key" in command("serve", "--model", tiny).said
