"""The C library under the sanitizers of addresses and of undefined behaviour."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.kernels.native.build import HERE, BuildError, build, find_compiler
from paceline.kernels.native.calls import kernels, unavailable


def test_nothing_is_read_or_written_out_of_bounds(tmp_path: Path) -> None:
    try:
        compiler = find_compiler()
    except BuildError as error:
        pytest.skip(str(error))
    asked = [*compiler.command, "-print-file-name=libasan.so"]
    runtime = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    if compiler.zig or not Path(runtime).is_file():
        pytest.skip("this compiler brings no address sanitizer")
    library = tmp_path / "libsanitized.so"
    build(library, sanitize=True, only=() if unavailable() else kernels().tiers)
    script = Path(__file__).with_name("sanitized_run.py")
    found = subprocess.run(
        [sys.executable, str(script), str(library), str(HERE)],
        env={**os.environ, "LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0"},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    assert "portable is clean" in found.stdout
