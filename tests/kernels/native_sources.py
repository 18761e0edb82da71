"""A folder like `paceline/kernels/native` with C of a few lines, which compiles in no time."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from paceline.kernels.native import build as real
from paceline.kernels.native.signatures import SIGNATURES

_OTHERS = SIGNATURES.keys() - {"pl_sources", "pl_tiers", "pl_cpu_has"}
API = """
#define PL_EXPORT __attribute__((visibility("default")))
PL_EXPORT const char *pl_sources(void);
PL_EXPORT const char *pl_tiers(void);
PL_EXPORT int pl_cpu_has(const char *tier);
const char *pl_sources(void) { return PL_SOURCES; }
const char *pl_tiers(void) { return "portable"; }
int pl_cpu_has(const char *tier) { return tier[0] == 'p'; }
""" + "".join(
    f"PL_EXPORT int {name}(void);\nint {name}(void) {{ return 0; }}\n" for name in _OTHERS
)
TIER = """
#define JOINED(left, right) left##_##right
#define OF_TIER(left, tier) JOINED(left, tier)
int OF_TIER(pl_ready, PL_TIER)(void);
int OF_TIER(pl_ready, PL_TIER)(void) { return 1; }
"""


def _why_no_compiler() -> str:
    try:
        real.find_compiler()
    except real.BuildError as error:
        return str(error)
    return ""


compiles = pytest.mark.skipif(bool(_why_no_compiler()), reason=_why_no_compiler())


def checkout(folder: Path) -> ModuleType:
    """The real build.py over small sources in `folder`; the module, which builds those."""
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "api.c").write_text(API)
    (folder / "src" / "tier.c").write_text(TIER)
    return copied(folder)


def real_checkout(folder: Path) -> ModuleType:
    """Everything as it is in the source tree, in `folder`; the module that builds it."""
    shutil.copytree(real.HERE / "src", folder / "src")
    return copied(folder)


def copied(folder: Path) -> ModuleType:
    """build.py in `folder`, loaded as the build hook does it."""
    path = Path(shutil.copy(real.HERE / "build.py", folder))
    spec = importlib.util.spec_from_file_location("native_build", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
