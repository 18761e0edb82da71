"""Compiles paceline's C library: `python build.py`.

The build hook of the package loads this file by its path, before paceline or anything else is
installed: it imports the standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "HERE",
    "BuildError",
    "Built",
    "Compiler",
    "build",
    "find_compiler",
    "library_name",
    "sources_hash",
    "zig_would_help",
]

HERE = Path(__file__).resolve().parent

# What each tier may use beyond the baseline of its machine, as gcc calls it; best tier last.
# The C sources say when a processor has it: cpu.c.
_TIERS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "portable": (),
        "avx2": ("avx2", "fma", "f16c"),
        "avxvnni": ("avx2", "fma", "f16c", "avxvnni"),
        "avx512vnni": (
            *("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni"),
            *("fma", "f16c", "avx2"),
        ),
    },
    # i8mm comes with ARMv8.6, but processors of 8.4 have it, too: 8.2 is all that is taken for sure.
    "aarch64": {
        "portable": (),
        "dotprod": ("dotprod", "fp16"),
        "i8mm": ("dotprod", "fp16", "i8mm"),
    },
    "other": {"portable": ()},
}
_ZIG_NAMES = {"fp16": "fullfp16"}

_FLAGS = (
    *("-O3", "-std=c11", "-fPIC", "-fvisibility=hidden", "-pthread"),
    # A product and the sum after it round twice on every machine, as in torch; no errno in loops.
    *("-ffp-contract=off", "-fno-math-errno"),
    *("-Wall", "-Wextra"),
)
_SANITIZED = (
    *("-O1", "-g", "-fno-omit-frame-pointer"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
)
_OLDEST_MACOS = "11.0"

# Needs headers and a linker, and says which machine the compiler compiles for.
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
    """The library cannot be built; its message says why in one sentence, and what to do."""


class _FailedError(Exception):
    """A compiler could not be run, or found something wrong; the message is what it printed."""


class Compiler(NamedTuple):
    """A C compiler that works.

    command: what to run, with the arguments that it always gets.
    machine: what it compiles for: x86_64, aarch64 or other.
    zig: whether it is zig's, which names processors in its own way.
    """

    command: tuple[str, ...]
    machine: str
    zig: bool


class Built(NamedTuple):
    """A finished library.

    tiers: compiled in, best last.
    machine: see `Compiler`.
    warnings: what the compiler had to say about the sources.
    """

    path: Path
    tiers: tuple[str, ...]
    machine: str
    warnings: str


def library_name(system: str = sys.platform) -> str:
    """The name of the library's file on such a system."""
    ending = {"darwin": "dylib", "win32": "dll"}.get(system, "so")
    return f"libpaceline.{ending}"


def sources_hash(folder: Path = HERE) -> str:
    """A hash of all that makes the library: the C sources in `folder/src`, and `build.py` itself."""
    digest = hashlib.sha256()
    for path in [folder / "build.py", *sorted((folder / "src").glob("*.[ch]"))]:
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def find_compiler() -> Compiler:
    """$CC if that is set, else the first of cc, gcc, clang and zig's that works.

    Raises BuildError where there is none, and for a $CC that does not work.
    """
    if sys.platform == "win32":
        raise BuildError("paceline's C library is not built on Windows yet.")
    named = os.environ.get("CC", "").strip()
    if named:
        found = _examined(_words(named))
        if found is None:
            raise BuildError(
                f"CC is {named!r}, which does not compile C here: "
                "set it to a C compiler that works, or unset it."
            )
        return found
    commands = [[name] for name in ("cc", "gcc", "clang") if shutil.which(name)]
    if importlib.util.find_spec("ziglang"):
        commands.append([sys.executable, "-m", "ziglang", "cc"])
    for command in commands:
        if found := _examined(command):
            return found
    raise BuildError(
        "There is no C compiler here that works: "
        "install gcc or clang, or zig's with `pip install ziglang`."
    )


def zig_would_help() -> bool:
    """Whether the library could be built here if the Python package ziglang were installed."""
    known = platform.machine().lower() in ("x86_64", "aarch64", "arm64")
    if os.environ.get("CC", "").strip() or sys.platform not in ("linux", "darwin") or not known:
        return False
    try:
        find_compiler()
    except BuildError:
        return True
    return False


def build(out: Path, sanitize: bool = False) -> Built:
    """Compile the sources beside this file into the library `out`.

    The finished file takes the place of an older one at once: a process that has that open keeps
    it.

    sanitize: with checks of addresses and of undefined behaviour, for tests; gcc or clang only.

    Raises BuildError.
    """
    compiler = find_compiler()
    if not list((HERE / "src").glob("tier*.c")):
        raise BuildError(f"There are no C sources in {HERE / 'src'}: build in a source checkout.")
    digest = sources_hash()
    try:
        with tempfile.TemporaryDirectory(prefix="paceline-") as name:
            making = _Making(compiler, Path(name), sanitize)
            tiers = making.compile(digest)
            making.link(Path(name, "library"))
            if sources_hash() != digest:
                raise BuildError("The C sources changed while they were compiled: build again.")
            _put_in_place(Path(name, "library"), out)
    except _FailedError as error:
        command = shlex.join(compiler.command)
        raise BuildError(f"`{command}` cannot build paceline's C library: {error}") from None
    except OSError as error:
        raise BuildError(f"paceline's C library cannot be written to {out}: {error}.") from None
    return Built(out, tiers, compiler.machine, "\n".join(filter(None, making.warnings)))


class _Making:
    """One run of the compiler over all units.

    folder: for the objects.
    """

    def __init__(self, compiler: Compiler, folder: Path, sanitize: bool) -> None:
        self.warnings: list[str] = []
        self._compiler, self._folder, self._sanitize = compiler, folder, sanitize
        self._objects: list[Path] = []
        flags = [*_FLAGS, *(_SANITIZED if sanitize else ())]
        if compiler.zig and not sanitize:
            flags.append("-fno-sanitize=undefined")  # zig's default for what is not optimised
        self._flags = flags

    def compile(self, digest: str) -> tuple[str, ...]:
        """All units; the tiers that this compiler knows, best last."""
        tiers = _TIERS[self._compiler.machine]
        units = sorted((HERE / "src").glob("*.c"))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            jobs = {
                tier: [
                    pool.submit(self._compile, unit, features, tier, [f"-DPL_TIER={tier}"])
                    for unit in units
                    if unit.name.startswith("tier")
                ]
                for tier, features in tiers.items()
            }
            found = {}
            for tier, features in tiers.items():
                try:
                    found[tier] = [job.result() for job in jobs[tier]]
                except _FailedError:
                    if self._knows(features):
                        raise
            self._objects += [made for objects in found.values() for made in objects]
            defined = [f"-DPL_HAS_{tier.upper()}" for tier in found]
            defined.append(f'-DPL_SOURCES="{digest}"')
            self._objects += pool.map(
                lambda unit: self._compile(unit, (), "all", defined),
                [unit for unit in units if not unit.name.startswith("tier")],
            )
        return tuple(found)

    def link(self, out: Path) -> None:
        """The compiled units, into one library."""
        flags = ["-shared", "-pthread"]
        if self._sanitize:
            flags += _SANITIZED
        elif sys.platform == "linux":
            flags.append("-Wl,-z,defs")  # what is missing is to be missed now, not by who opens it
        if sys.platform == "darwin":
            flags.append(f"-Wl,-install_name,@rpath/{library_name()}")
        flags += _processor(self._compiler, ())
        self._run([*flags, *map(str, self._objects), "-lm", "-o", str(out)])

    def _compile(
        self, unit: Path, features: Sequence[str], name: str, defined: Sequence[str]
    ) -> Path:
        out = self._folder / f"{unit.stem}-{name}.o"
        flags = [*self._flags, *_processor(self._compiler, features), *defined]
        self._run([*flags, "-c", str(unit), "-o", str(out)])
        return out

    def _knows(self, features: Sequence[str]) -> bool:
        """Whether the compiler knows such processors, so that what it refused was the source."""
        trial = self._folder / "trial.c"
        trial.write_text(_TRIAL, encoding="utf-8")
        try:
            self._compile(trial, features, "trial", [])
        except _FailedError:
            return False
        return True

    def _run(self, arguments: Sequence[str]) -> None:
        self.warnings.append(_run([*self._compiler.command, *arguments]))


def _processor(compiler: Compiler, features: Sequence[str]) -> list[str]:
    """The flags that let the compiler use these features and no others."""
    on_arm = compiler.machine == "aarch64"
    if compiler.zig:
        # Told nothing, zig compiles for the very processor that it runs on.
        version = ["v8_2a"] if on_arm and features else []
        names = [_ZIG_NAMES.get(feature, feature) for feature in features]
        return ["-mcpu=" + "+".join(["baseline", *version, *names])]
    if on_arm:
        return ["-march=armv8.2-a+" + "+".join(features)] if features else []
    return [f"-m{feature}" for feature in features]


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return [command]


def _examined(command: Sequence[str]) -> Compiler | None:
    """The compiler that is run like this; None for what compiles no library."""
    zig = any(Path(word).stem == "zig" or word == "ziglang" for word in command)
    if sys.platform == "darwin":
        command = [*command, *_words(os.environ.get("ARCHFLAGS", ""))]
    with tempfile.TemporaryDirectory(prefix="paceline-") as name:
        trial = Path(name, "trial.c")
        trial.write_text(_TRIAL, encoding="utf-8")
        try:
            expanded = _run([*command, "-E", str(trial)])
            _run([*command, "-shared", "-fPIC", str(trial), "-o", str(Path(name, "trial"))])
        except _FailedError:
            return None
    machine = next((each for each in _TIERS if f"pl_machine_{each}" in expanded), None)
    return Compiler(tuple(command), machine, zig) if machine else None


def _run(command: Sequence[str]) -> str:
    """What the command printed.

    Raises _FailedError where it fails.
    """
    environment = {"MACOSX_DEPLOYMENT_TARGET": _OLDEST_MACOS, **os.environ}
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise _FailedError(str(error)) from None
    if done.returncode:
        raise _FailedError(done.stdout.strip() or f"it ended with {done.returncode}")
    return done.stdout.strip()


def _put_in_place(made: Path, out: Path) -> None:
    """Copy beside `out` first: only there can one file take the place of another at once."""
    out = out.absolute()
    handle, name = tempfile.mkstemp(prefix=".libpaceline-", dir=out.parent)
    os.close(handle)
    try:
        shutil.copy(made, name)
        Path(name).replace(out)
    finally:
        Path(name).unlink(missing_ok=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The script; 2 where the library cannot be built."""
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
