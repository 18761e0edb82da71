"""Compile paceline's C library: `python build.py`.

The package's build hook loads this file by path, before installation: standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from subprocess import DEVNULL, run
from typing import NamedTuple

Words = Sequence[str]
HERE = Path(__file__).resolve().parent

# What each tier may use beyond the baseline of its machine, by gcc's names; best tier last.
# cpu.c tests whether a processor has it.
_DOTPROD = ("dotprod", "fp16")
_AVX2 = ("avx2", "fma", "f16c")
_AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni")
_TIERS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "portable": (),
        "avx2": _AVX2,
        "avxvnni": (*_AVX2, "avxvnni"),
        "avx512vnni": (*_AVX2, *_AVX512),
        "avx512bf16": (*_AVX2, *_AVX512, "avx512bf16"),
        "amx": (*_AVX2, *_AVX512, "avx512bf16", "amx-tile", "amx-bf16"),
    },
    "aarch64": {"portable": (), "dotprod": _DOTPROD, "i8mm": (*_DOTPROD, "i8mm")},
    "other": {"portable": ()},
}
_ZIG_NAMES = {"fp16": "fullfp16", "amx-tile": "amx_tile", "amx-bf16": "amx_bf16"}

_FLAGS = (
    *("-O3", "-std=c11", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra"),
    # Products and sums round separately on every machine; no errno in loops.
    *("-ffp-contract=off", "-fno-math-errno"),
)
_SANITIZED = (
    *("-O0", "-g", "-fno-omit-frame-pointer"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
)

# Needs headers and a linker, and shows which machine the compiler compiles for.
_TRIAL = """
#include <stdint.h>
#include <stdlib.h>
#if defined(__x86_64__) && !defined(__ILP32__)
int64_t pl_machine_x86_64(void) { return 0; }
#elif defined(__aarch64__) && defined(__LP64__)
int64_t pl_machine_aarch64(void) { return 0; }
#else
int64_t pl_machine_other(void) { return 0; }
#endif
"""


class BuildError(Exception):
    """The library cannot be built; the message says why in one sentence, and what to do."""


class Compiler(NamedTuple):
    """A C compiler that works: its command and machine (x86_64, aarch64 or other).

    zig: whether it is zig's, which has its own names for processors.
    """

    command: tuple[str, ...]
    machine: str
    zig: bool


class Built(NamedTuple):
    """A finished library: its tiers (best last), its machine, and the compiler's warnings."""

    path: Path
    tiers: tuple[str, ...]
    machine: str
    warnings: str


def library_name(system: str = sys.platform) -> str:
    """The library's file name on a system."""
    ending = {"darwin": "dylib", "win32": "dll"}.get(system, "so")
    return f"libpaceline.{ending}"


def sources_hash(folder: Path = HERE) -> str:
    """A hash of everything the library is built from: the C sources in `folder/src` and
    `build.py`."""
    digest = hashlib.sha256()
    for path in [folder / "build.py", *sorted((folder / "src").glob("*.[ch]"))]:
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def find_compiler() -> Compiler:
    """$CC if set, else the first of cc, gcc, clang and zig's that works.

    Raises BuildError if there is none, or if $CC does not work.
    """
    if sys.platform == "win32":
        raise BuildError("paceline's C library is not built on Windows yet.")
    named = os.environ.get("CC", "").strip()
    zig = shlex.join([sys.executable, "-m", "ziglang", "cc"])
    for command in [named] if named else ["cc", "gcc", "clang", zig]:
        if found := _examined(command):
            return found
    raise BuildError(
        f"CC is {named!r}, which does not compile C here: set it to a C compiler, or unset it."
        if named
        else "There is no C compiler here: install gcc or clang, or zig's by `pip install ziglang`."
    )


def build(out: Path, sanitize: bool = False, only: Words = ()) -> Built:
    """Compile the sources beside this file into the library `out`, which atomically replaces an
    older one: a process that has that open keeps it.

    sanitize: with address and undefined-behaviour checks; gcc or clang only. only: these tiers; by
    default all that the compiler knows. Raises BuildError.
    """
    compiler = find_compiler()
    units = sorted((HERE / "src").glob("*.c"))
    if not units:
        raise BuildError(f"There are no C sources in {HERE / 'src'}: build in a source checkout.")
    digest = sources_hash()
    try:
        with tempfile.TemporaryDirectory(prefix="paceline-") as name:
            making = _Making(compiler, Path(name), sanitize)
            tiers = making.compile(units, digest, only)
            if sources_hash() != digest:
                raise BuildError("The C sources changed while they were compiled: build again.")
            _put_in_place(making.link(), out)
    except OSError as error:
        raise BuildError(f"paceline's C library cannot be written to {out}: {error}.") from None
    return Built(out, tiers, compiler.machine, "\n".join(filter(None, making.said)))


class _Making:
    """One build of all units; objects go to `folder`."""

    def __init__(self, compiler: Compiler, folder: Path, sanitize: bool) -> None:
        self.said: list[str] = []
        self._compiler, self._folder, self._sanitize = compiler, folder, sanitize
        self._objects: list[Path] = []

    def compile(self, units: Sequence[Path], digest: str, only: Words) -> tuple[str, ...]:
        """Compile all units; returns the tiers that this compiler knows, best last."""
        tiers = {t: of for t, of in _TIERS[self._compiler.machine].items() if not only or t in only}
        tiered = [unit for unit in units if unit.name.startswith("tier")]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            jobs = {
                tier: self._start(pool, tiered, tier, features, [f"-DPL_TIER={tier}"])
                for tier, features in tiers.items()
            }
            found = [tier for tier in tiers if self._collect(jobs[tier], tiers[tier])]
            defined = [*(f"-DPL_HAS_{tier.upper()}" for tier in found), f'-DPL_SOURCES="{digest}"']
            rest = [unit for unit in units if unit not in tiered]
            self._collect(self._start(pool, rest, "all", (), defined), ())
        return tuple(found)

    def link(self) -> Path:
        """Link what was compiled into the library."""
        out = self._folder / library_name()
        flags = ["-shared", "-pthread", *_processor(self._compiler, ())]
        if self._sanitize:
            flags += _SANITIZED
        elif sys.platform == "linux":
            flags.append("-Wl,-z,defs")  # missing symbols fail here, not when it is opened
        if sys.platform == "darwin":
            flags.append(f"-Wl,-install_name,@rpath/{out.name}")
        self._run([*flags, *map(str, self._objects), "-lm", "-o", str(out)])
        return out

    def _start(
        self, pool: Executor, units: Sequence[Path], name: str, features: Words, defined: Words
    ) -> list[Future[Path]]:
        return [pool.submit(self._compile, unit, name, features, defined) for unit in units]

    def _compile(self, unit: Path, name: str, features: Words, defined: Words) -> Path:
        out = self._folder / f"{unit.stem}-{name}.o"
        flags = [*_FLAGS, *_processor(self._compiler, features), *defined]
        if self._sanitize:
            flags += _SANITIZED
        elif self._compiler.zig:
            flags.append("-fno-sanitize=undefined")  # zig's default for unoptimised code
        self._run([*flags, "-c", str(unit), "-o", str(out)])
        return out

    def _collect(self, jobs: Sequence[Future[Path]], features: Words) -> bool:
        """Wait for these objects; False if the compiler does not know such processors.

        Raises BuildError if it does, but refuses the source.
        """
        try:
            self._objects += [job.result() for job in jobs]
        except BuildError:
            trial = _trial_in(self._folder)
            try:
                self._compile(trial, "trial", features, ())
            except BuildError:
                return False
            raise
        return True

    def _run(self, arguments: Words) -> None:
        self.said.append(_run([*self._compiler.command, *arguments]))


def _trial_in(folder: Path) -> Path:
    path = folder / "trial.c"
    path.write_text(_TRIAL, encoding="utf-8")
    return path


def _processor(compiler: Compiler, features: Words) -> list[str]:
    """Flags that let the compiler use these features and no others."""
    on_arm = compiler.machine == "aarch64"
    if compiler.zig:
        # By default, zig compiles for the processor that it runs on.
        names = [_ZIG_NAMES.get(feature, feature) for feature in features]
        return ["-mcpu=" + "+".join(["baseline", *names])]
    if on_arm:
        return ["-march=armv8.2-a+" + "+".join(features)] if features else []
    return [f"-m{feature}" for feature in features]


def _examined(named: str) -> Compiler | None:
    """The compiler behind this command; None if it cannot build a library."""
    more = os.environ.get("ARCHFLAGS", "") if sys.platform == "darwin" else ""
    try:
        command = shlex.split(f"{named} {more}")
    except ValueError:  # a quote that never ends
        return None
    zig = any(Path(word).stem == "zig" or word == "ziglang" for word in command)
    with tempfile.TemporaryDirectory(prefix="paceline-") as name:
        trial = _trial_in(Path(name))
        try:
            expanded = _run([*command, "-E", str(trial)])
            _run([*command, "-shared", "-fPIC", str(trial), "-o", str(trial.with_suffix(""))])
        except BuildError:
            return None
    machine = next((each for each in _TIERS if f"pl_machine_{each}" in expanded), None)
    return Compiler(tuple(command), machine, zig) if machine else None


def _run(command: Words) -> str:
    """What the command printed; raises BuildError if it fails."""
    environment = {"MACOSX_DEPLOYMENT_TARGET": "11.0", **os.environ}  # as the wheels are tagged
    try:
        done = run(command, env=environment, stdin=DEVNULL, capture_output=True)
    except OSError as error:
        raise BuildError(f"`{command[0]}` cannot be run: {error}.") from None
    printed = (done.stdout + done.stderr).decode(errors="replace").strip()
    if done.returncode:
        raise BuildError(f"`{shlex.join(command)}` ended with {done.returncode}: {printed}")
    return printed


def _put_in_place(made: Path, out: Path) -> None:
    """Copy beside `out` first: only within a file system is a replacement atomic."""
    beside = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        shutil.copy(made, beside)
        beside.replace(out)
    finally:
        beside.unlink(missing_ok=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The script; 2 if the library cannot be built."""
    parser = argparse.ArgumentParser(description="Compile paceline's C library.")
    parser.add_argument("--out", type=Path, default=HERE / library_name(), metavar="FILE")
    parser.add_argument("--sanitize", action="store_true", help="with address and UB checks")
    options = parser.parse_args(arguments)
    try:
        built = build(options.out, options.sanitize)
    except BuildError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stderr.write(f"{built.warnings}\n" if built.warnings else "")
    sys.stdout.write(f"{built.path}: {built.machine}, {', '.join(built.tiers)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
