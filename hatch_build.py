"""Puts paceline's C library into wheels, and compiles it in place for an editable install.

The environment variable PACELINE_NATIVE says how much it is wanted: unset, it is left out with a
warning where it cannot be built; "require" makes that an error; "0" leaves it out.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_INSTALLED = "paceline/kernels/native"
_ZIG = "ziglang>=0.12"
_ZIG_MACHINES = ("x86_64", "aarch64", "arm64")
_WISHES = ("", "0", "require")


class NativeBuildHook(BuildHookInterface):
    """Compiles the library for the target wheel."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """A compiler, where there is none."""
        named = os.environ.get("CC", "").strip()
        for_zig = sys.platform in ("linux", "darwin") and platform.machine() in _ZIG_MACHINES
        if _wish() == "0" or named or not for_zig:
            return []
        builder = self._builder()
        try:
            builder.find_compiler()
        except builder.BuildError:
            return [_ZIG]
        return []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the library into the source tree, or for the wheel."""
        builder, wish = self._builder(), _wish()
        if version == "editable":
            out = self._native() / builder.library_name()
            if wish == "0" or not _is_built(out, builder.sources_hash()):
                self._make(builder, wish, out)
            return
        # Until the hook itself is gone, which the wheel does not outlive.
        self._folder = TemporaryDirectory(prefix="paceline-")
        out = Path(self._folder.name, builder.library_name())
        if machine := self._make(builder, wish, out):
            build_data["force_include"][str(out)] = f"{_INSTALLED}/{out.name}"
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{_platform_tag(machine)}"

    def _make(self, builder: ModuleType, wish: str, out: Path) -> str:
        """Build `out`; for which machine, "" where there is no library now."""
        if wish == "0":
            out.unlink(missing_ok=True)
            return ""
        try:
            machine: str = builder.build(out).machine
        except builder.BuildError as error:
            if wish == "require":
                raise
            self.app.display_warning(f"paceline goes without its C library. {error}")
            return ""
        return machine

    def _native(self) -> Path:
        return Path(self.root, "src", _INSTALLED)

    def _builder(self) -> ModuleType:
        """The module build.py, loaded by its path: paceline is not installed yet."""
        spec = importlib.util.spec_from_file_location("native_build", self._native() / "build.py")
        if spec is None or spec.loader is None:
            raise FileNotFoundError(
                f"{self._native()} has no build.py: the sources are incomplete."
            )
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


def _is_built(library: Path, sources: str) -> bool:
    """Whether it is there, made of these sources, whose hash it holds."""
    return library.is_file() and sources.encode() in library.read_bytes()


def _wish() -> str:
    wish = os.environ.get("PACELINE_NATIVE", "")
    if wish not in _WISHES:
        raise ValueError(f"PACELINE_NATIVE is {wish!r}: unset it, or make it 0 or require.")
    return wish


def _platform_tag(machine: str) -> str:
    """The platform in the wheel's name; a Python for two machines still gets a library for one."""
    if sys.platform == "darwin":
        return f"macosx_11_0_{'arm64' if machine == 'aarch64' else machine}"
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")
