"""`paceline datastore`, and the answers that `--datastore` keeps."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from tests.cli.running import Command

from paceline.datastore import Datastore


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))


def write_texts(folder: Path) -> Path:
    folder.mkdir()
    (folder / "notes.txt").write_text("A proof is a proof.", encoding="utf-8")
    (folder / ".hidden").write_bytes(b"\xff\xfe")
    records = [{"outputs": ["one", "two"]}, {"turns": ["no answer"]}, {"text": "three"}]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "answers.jsonl").write_text(lines, encoding="utf-8")
    (folder / "more.jsonl.gz").write_bytes(gzip.compress(b'{"answer": "four"}\n'))
    return folder


def test_texts_are_built_shown_and_cleared(command: Command, tiny: Path, tmp_path: Path) -> None:
    texts, out = write_texts(tmp_path / "texts"), tmp_path / "store"
    built = command("datastore", "build", "--model", tiny, "--out", out, texts)
    assert built.code == 0, built.err
    assert f"built {out}, 5 texts" in built.said
    shown = command("datastore", "info", out)
    assert shown.code == 0 and shown.out.startswith(f"{out}: 5 texts, ")
    assert len(Datastore(out, "").arrays()) == 1
    again = command("datastore", "build", "--model", tiny, "--out", out, texts / "notes.txt")
    assert again.code == 0 and "5 texts" in again.said
    assert command("datastore", "clear", out).code == 0
    assert "0 texts, 0 tokens, 0.0 MB" in command("datastore", "info", out).out


def test_a_model_has_a_datastore_of_its_own(command: Command, tiny: Path, tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts")
    missing = command("datastore", "info", "--model", tiny)
    assert missing.code == 2 and "there is no datastore at" in missing.said
    unasked = command("generate", "x", "--model", tiny, "--raw", "-n", "3", "--method", "rest")
    assert unasked.code == 2 and "paceline datastore build" in unasked.said
    assert command("datastore", "build", "--model", tiny, texts).code == 0
    assert "5 texts" in command("datastore", "info", "--model", tiny).out
    drafted = command("generate", "x", "--model", tiny, "--raw", "-n", "9", "--method", "rest")
    plain = command("generate", "x", "--model", tiny, "--raw", "-n", "9", "--method", "plain")
    assert drafted.code == 0 and drafted.out == plain.out
    assert "5 texts" in command("datastore", "info", "--model", tiny).out  # nobody asked to record


def test_answers_are_kept_where_that_was_asked_for(
    command: Command, tiny: Path, tmp_path: Path
) -> None:
    out = tmp_path / "store"
    words = ("generate", "x", "--model", tiny, "--raw", "-n", "9", "--method", "sam")
    assert command(*words, "--datastore", out).code == 0
    assert "1 text" in command("datastore", "info", out).out
    assert command(*words, "--datastore", "own").code == 0
    assert "1 text" in command("datastore", "info", "--model", tiny).out


def test_a_limit_lets_the_oldest_texts_go(command: Command, tiny: Path, tmp_path: Path) -> None:
    texts, out = write_texts(tmp_path / "texts"), tmp_path / "store"
    words = ("datastore", "build", "--model", tiny, "--out", out, "--limit", "6")
    assert command(*words, texts / "notes.txt", texts / "more.jsonl.gz").code == 0
    assert command("datastore", "info", out).out.startswith(f"{out}: 1 text, ")


def test_mistakes_are_one_sentence(command: Command, tiny: Path, tmp_path: Path) -> None:
    texts, out = write_texts(tmp_path / "texts"), tmp_path / "store"
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "prompts.jsonl").write_text('{"turns": ["x"]}\n')
    (tmp_path / "empty").mkdir()
    build = ("datastore", "build", "--model", tiny, "--out", out)
    for name, message in [
        ("binary", "is not UTF-8 text"),
        ("none", "cannot read the file"),
        ("prompts.jsonl", "has a text"),
        ("empty", "holds no files"),
    ]:
        refused = command(*build, tmp_path / name)
        assert refused.code == 2 and message in refused.said, refused.err
        assert not out.exists()
    assert command(*build, texts).code == 0
    content = bytearray((out / "index").read_bytes())
    content[70] ^= 1
    (out / "index").write_bytes(content)
    generate = ("generate", "x", "--model", tiny, "--raw", "-n", "3")
    for words in [
        ("datastore", "info", out),
        (*build, texts),
        (*generate, "--method", f"rest:datastore={out}"),
        (*generate, "--datastore", out),
    ]:
        refused = command(*words)
        assert refused.code == 2 and "is damaged" in refused.said, refused.err
        assert len([line for line in refused.err.splitlines() if "error" in line]) == 1
    assert command("datastore", "clear", out).code == 0
    assert command(*build, texts).code == 0
    assert command(*generate, "--method", f"rest:datastore={tmp_path / 'none'}").code == 2
