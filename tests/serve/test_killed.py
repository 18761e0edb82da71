"""A server that is killed while it writes answers, and the one that is started after it."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import httpx
from tests.serve.live import TRUSTS_NOBODY, serving
from tests.tiny import save_tiny_llama

from paceline.datastore import Datastore
from paceline.datastore import store as module

MODEL = "tiny"
CLIENTS, KILLS, ANSWERS = 3, 2, 5


class Clients:
    """They ask one question after the other until the server is gone. answers: whole ones, by
    prompt."""

    def __init__(self, url: str, name: str) -> None:
        self._url, self._name = url, name
        self.answers: dict[str, str] = {}
        self.broken_off = 0
        self.enough = Event()

    def run(self, client: int) -> None:
        """One of them."""
        for number in range(10_000):
            prompt = f"{self._name}: list {client + 2} animals that are not {number}:"
            try:
                self.answers[prompt] = ask(self._url, prompt)
            except httpx.TransportError:
                self.broken_off += 1
                return
            if len(self.answers) >= ANSWERS:
                self.enough.set()


def ask(url: str, prompt: str) -> str:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 24, "temperature": 0}
    body["ignore_eos"] = True
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=120, verify=TRUSTS_NOBODY)
    assert answer.status_code == 200
    text: str = answer.json()["choices"][0]["text"]
    return text


def documents(folder: Path) -> list[list[int]]:
    """Of a datastore, read as a process would that opens it anew."""
    store = Datastore(folder, "")
    return [
        text.tolist() for text in (*module._documents(store._index.tokens), *store._log.documents)
    ]


def said(url: str, documents: list[list[int]]) -> list[str]:
    """Their texts, by the server's tokenizer."""
    body: Any = {"model": MODEL}
    replies = [
        httpx.post(
            f"{url}/detokenize", json={**body, "tokens": tokens}, timeout=60, verify=TRUSTS_NOBODY
        )
        for tokens in documents
    ]
    return [reply.json()["prompt"] for reply in replies]


def test_a_killed_server_starts_again_and_has_lost_nothing(tmp_path: Path) -> None:
    folder, model = tmp_path / "datastore", save_tiny_llama(tmp_path / MODEL)
    answers: dict[str, str] = {}
    kept: list[list[int]] = []
    for kill in range(KILLS + 1):
        with serving(model, "--method", "auto", "--datastore", folder) as (process, url):
            found = documents(folder)
            assert found[: len(kept)] == kept, "what the server before had opened is still there"
            texts = said(url, found)
            for prompt, answer in answers.items():
                assert any(text.endswith(answer) for text in texts), "it was told, so it is kept"
                assert ask(url, prompt) == answer
            if kill == KILLS:
                break
            kept = documents(folder)
            clients = Clients(url, f"Run {kill}")
            with ThreadPoolExecutor(CLIENTS) as pool:
                pool.map(clients.run, range(CLIENTS))
                assert clients.enough.wait(300)
                process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        assert clients.broken_off == CLIENTS
        answers |= clients.answers
    assert len(answers) >= KILLS * ANSWERS
