"""Servers side by side: what is asked of them, and what is said of one that does not start."""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.bench.checkout import ROOT

pytest.importorskip("fastapi", reason="needs the extra 'serve'")

from tests.serve.live import MODEL, live, tool_session


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    return import_module("serve_peers")


def test_servers_are_asked_in_turns_and_compared(peers: Any) -> None:
    ask = import_module("serve_pool").Ask
    asks = [ask("chat", "once" + "x" * place, place, 0.0, 8) for place in range(3)]
    with live(tool_session()) as served:
        entries = [
            peers.Entry(peers.BASE, served.url, MODEL, "off", at_once=16),
            peers.Entry("other", served.url, MODEL),
        ]
        first = asyncio.run(peers.alone(entries[1], asks[0]))
        rows = asyncio.run(peers.study(entries, asks, [1, 2], 1))
    assert first["streamed_tokens"] == first["completion_tokens"] > 0
    assert [(row["clients"], row["server"], row["at_once"]) for row in rows] == [
        (1, peers.BASE, 1),
        (1, "other", 1),
        (2, peers.BASE, 2),
        (2, "other", 1),
    ]
    assert all(row["answers"] == 3 and not row["failed"] for row in rows)
    assert rows[0]["over_plain"] == rows[2]["over_plain"] == 1.0
    assert rows[0]["tokens"] > 0


def test_what_a_server_says_that_does_not_start_is_passed_on(peers: Any, tmp_path: Path) -> None:
    peer = peers.Peer("broken", [sys.executable, "-c", "raise SystemExit('no such model')"], "m")
    with pytest.raises(SystemExit, match="no such model"), peers.process(peer, tmp_path / "log"):
        pass
