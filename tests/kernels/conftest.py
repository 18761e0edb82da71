"""What tests of kernels share."""

from __future__ import annotations

import pytest
from filelock import FileLock
from tests.kernels.emulation import emulate
from tests.shared_folder import shared_folder

from paceline.kernels.native.calls import Kernels


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    """Tiers of other processors, which are `EMULATED`; compiled once for all workers of a run."""
    folder = shared_folder(tmp_path_factory, "emulated")
    with FileLock(folder / "lock"):
        return emulate(folder)
