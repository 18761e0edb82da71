"""Check that the installed paceline has the C library of this source tree.

    python tools/check_wheel.py

It opens the library in site-packages without importing paceline, so it needs neither torch nor any
other package.
"""

from __future__ import annotations

import ctypes
import importlib.util
import runpy
import sys
from pathlib import Path

_NATIVE = Path("kernels", "native")


def main() -> None:
    """Print one line about the library, or exit with what is wrong."""
    source = Path(__file__).parents[1] / "src" / "paceline"
    build = runpy.run_path(str(source / _NATIVE / "build.py"))
    spec = importlib.util.find_spec("paceline")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("paceline is not installed here: install the wheel first.")
    path = Path(spec.submodule_search_locations[0]) / _NATIVE / build["library_name"]()
    if not path.is_file():
        raise SystemExit(f"The wheel brought no {path}: build it with PACELINE_NATIVE=require.")
    library = ctypes.CDLL(str(path))
    library.pl_sources.restype = library.pl_tiers.restype = ctypes.c_char_p
    if library.pl_sources().decode() != build["sources_hash"]():
        raise SystemExit(f"{path} was built from other C sources than those of {source}.")
    sys.stdout.write(f"{path}: {library.pl_tiers().decode()}\n")


if __name__ == "__main__":
    main()
