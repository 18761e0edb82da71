"""Answers that a server adds to its datastore, and a datastore that takes none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.serve.live import live, tool_session

from paceline.datastore import PROMPT_TOKENS, Datastore
from paceline.errors import StoreError
from paceline.session import Session

MARK = "a" * 32


def session_with(store: Datastore) -> Session:
    session = tool_session()
    session.host = replace(session.host, datastore=store)
    return session


def test_every_answer_is_kept(tmp_path: Path) -> None:
    with live(session_with(Datastore(tmp_path, MARK))) as served:
        for _ in range(2):
            answer = served.complete(n=2, seed=5, max_tokens=9, ignore_eos=True).json()
    assert answer["usage"]["completion_tokens"] == 18
    info = Datastore(tmp_path, MARK).info()
    assert (info.documents, info.tokens) == (4, 4 * (9 + PROMPT_TOKENS))


def test_an_answer_not_to_be_stored_is_not_kept(tmp_path: Path) -> None:
    with live(session_with(Datastore(tmp_path, MARK))) as served:
        for store in (False, True, None):
            served.complete(max_tokens=5, store=store)
        assert served.complete(store="no").status_code == 400
    assert Datastore(tmp_path, MARK).info().documents == 2


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_cannot_be_kept_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any, stream: bool
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise StoreError("cannot change the datastore: free some space")

    with live(tool_session()) as served:
        expected = served.complete(seed=5, stream=stream)
    monkeypatch.setattr(Datastore, "add", full)
    with live(session_with(Datastore(tmp_path, MARK))) as served:
        answer = served.complete(seed=5, stream=stream)
    assert answer.status_code == 200
    if stream:
        assert answer.text.endswith("data: [DONE]\n\n")
        assert answer.text.count("data: ") == expected.text.count("data: ")
    else:
        assert answer.json()["choices"] == expected.json()["choices"]
    assert "answer not kept" in caplog.messages
