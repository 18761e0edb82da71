"""`paceline models gguf` as its user meets it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from paceline.cli import main
from paceline.models import ModelStore
from paceline.models.prepared_cache import find_prepared, keep_prepared
from paceline.models.progress import ProgressCallback


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["paceline", "models", "gguf", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_path_of_the_written_file_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def write(store: ModelStore, name: str, file: Path, *, progress: ProgressCallback) -> None:
        file.write_text(name)

    monkeypatch.setattr(ModelStore, "write_gguf", write)
    file = tmp_path / "model.gguf"
    assert run(monkeypatch, "smollm2-135m", file) == 0
    assert file.read_text() == "smollm2-135m"
    out, err = capsys.readouterr()
    assert (out, err.strip()) == (f"{file}\n", "")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("smollm2", "unknown model 'smollm2' (did you mean"),
        ("all-minilm-l6-v2", "all-minilm-l6-v2 is not made from a GGUF file"),
        ("smollm2-135m", "exists already: delete it or name another file"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    name: str,
    words: str,
) -> None:
    assert run(monkeypatch, name, tmp_path) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (sentence,) = [line for line in err.splitlines() if line.strip()]
    assert words in sentence


def test_what_is_kept_about_files_is_cleared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    kept = tmp_path / "gguf" / ("0123" * 8)
    kept.mkdir(parents=True)
    (kept / "tokenizer.json").write_bytes(bytes(3_000_000))
    keep_prepared("0123", {}, {"t": torch.zeros(500_000)})
    monkeypatch.setattr(sys, "argv", ["paceline", "models", "clear"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert not kept.exists()
    assert find_prepared("0123") is None
    out, err = capsys.readouterr()
    assert (out, err.strip()) == ("", "5 MB freed")
