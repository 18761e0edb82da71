"""Find and open paceline's C library, if it was built."""

from __future__ import annotations

import ctypes
import shlex
import sys
from pathlib import Path

from paceline.kernels.native.build import library_name, sources_hash
from paceline.kernels.native.signatures import SIGNATURES


def find(folder: Path) -> tuple[ctypes.CDLL | None, str]:
    """The library in `folder` and "", or None and why not.

    If the folder also has the C sources, the library must have been built from exactly these.
    """
    path = folder / library_name()
    in_checkout = (folder / "src").is_dir()
    cure = (
        f"run `{shlex.join([sys.executable, str(folder / 'build.py')])}`"
        if in_checkout
        else "reinstall paceline on a machine that has a C compiler"
    )
    if not path.is_file():
        return None, f"paceline's C library was not built; {cure}."
    try:
        library = ctypes.CDLL(str(path))
        _declare(library, "pl_sources")
        if in_checkout and library.pl_sources().decode() != sources_hash(folder):
            return None, f"{path} was not built from the C sources beside it; {cure}."
        _declare(library, *SIGNATURES)
    except (OSError, AttributeError) as error:
        return None, f"paceline's C library cannot be opened ({error}); {cure}."
    return library, ""


def open_library(path: Path) -> ctypes.CDLL:
    """The library in any file, from any sources: a sanitized one, for example.

    Raises OSError for a file that cannot be opened, AttributeError for one without our functions.
    """
    library = ctypes.CDLL(str(path))
    _declare(library, *SIGNATURES)
    return library


def _declare(library: ctypes.CDLL, *names: str) -> None:
    for name in names:
        function = getattr(library, name)
        function.restype, function.argtypes = SIGNATURES[name]
