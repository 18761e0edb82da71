"""Tiers against the portable one in a program of C: of this machine, and of ARM where a compiler for
it and an emulator are at hand (Debian: gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, qemu-user)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.c_library import needs_library

from paceline.kernels.native import build
from paceline.kernels.native.build import HERE, BuildError, find_compiler
from paceline.kernels.native.calls import kernels

SOURCE = Path(__file__).with_name("every_tier.c")
ARM = "aarch64-linux-gnu"
EMULATOR = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")


def compiled(folder: Path, library: Path) -> Path:
    """The program, on a library."""
    program = folder / "every_tier"
    flags = ["-O1", "-std=c11", f"-I{HERE / 'src'}", str(SOURCE), str(library)]
    flags += [f"-Wl,-rpath,{library.parent}", "-o", str(program)]
    subprocess.run([*find_compiler().command, *flags], check=True)
    return program


def names_of(*command: str) -> list[str]:
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout
    return ran.stdout.strip().split(",")


@needs_library
def test_tiers_of_this_machine(tmp_path: Path) -> None:
    try:
        program = compiled(tmp_path, HERE / build.library_name())
    except BuildError as reason:
        pytest.skip(str(reason))
    assert names_of(str(program)) == list(kernels().tiers)


@pytest.mark.skipif(not EMULATOR, reason="needs an emulator of ARM")
@pytest.mark.skipif(not shutil.which(f"{ARM}-gcc"), reason="needs a compiler for ARM")
def test_tiers_of_arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", f"{ARM}-gcc")
    # The numbers are the same, and optimising takes longer than everything else.
    monkeypatch.setattr(build, "_FLAGS", (*build._FLAGS, "-O0"))
    library = build.build(tmp_path / build.library_name()).path
    program = str(compiled(tmp_path, library))
    for processor, tiers in (
        ("max", ["i8mm", "dotprod", "portable"]),
        ("cortex-a76", ["dotprod", "portable"]),
        ("cortex-a57", ["portable"]),
    ):
        assert names_of(str(EMULATOR), "-L", f"/usr/{ARM}", "-cpu", processor, program) == tiers
