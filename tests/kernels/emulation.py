"""Tiers of processors that this one is not, in the fixture `emulated` of conftest.py."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from paceline.kernels.native import library
from paceline.kernels.native.build import HERE, BuildError, Compiler, find_compiler
from paceline.kernels.native.calls import Kernels, kernels

__all__ = ["EMULATED", "emulate"]

EMULATED = ("amx", "avx512bf16", "avx512vnni", "avxvnni")


def emulate(folder: Path) -> Kernels:
    """`EMULATED`, compiled for AVX2 with the instructions of AVX-512, AVX-VNNI and AMX in C; what is
    compiled goes to `folder`, once.
    """
    try:
        compiler = find_compiler()
    except BuildError as error:
        pytest.skip(str(error))
    if compiler.machine != "x86_64" or "avx2" not in kernels().tiers:
        pytest.skip("emulated with AVX2")
    made = folder / "libemulated.so"
    if not made.exists():
        _compile(compiler, folder, made)
    return Kernels(library.open_library(made))


def _compile(compiler: Compiler, folder: Path, made: Path) -> None:
    header = Path(__file__).with_name("emulated_x86.h")
    flags = ["-O0", "-std=c11", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-Wno-psabi"]
    # The header comes before what a file asks of its own headers.
    instructions = ["-include", str(header)]
    flags += ["-D_POSIX_C_SOURCE=200809L", "-DPL_EMULATE"]
    flags += ["-mavx2", "-mfma", "-mf16c"]
    flags += [f"-DPL_HAS_{tier.upper()}" for tier in EMULATED]
    units = [(unit.stem, unit, []) for unit in (HERE / "src").glob("*.c") if unit.stem != "tier"]
    units += [
        (tier, HERE / "src" / "tier.c", [f"-DPL_TIER={tier}", *instructions])
        for tier in (*EMULATED, "portable")
    ]
    objects = []
    for name, unit, more in units:
        objects.append(str(folder / f"{name}.o"))
        command = [*compiler.command, *flags, *more, "-c", str(unit), "-o", objects[-1]]
        subprocess.run(command, check=True)
    subprocess.run(
        [*compiler.command, "-shared", "-pthread", *objects, "-lm", "-o", str(made)], check=True
    )
