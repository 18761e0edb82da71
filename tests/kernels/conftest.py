"""What tests of kernels share."""

from __future__ import annotations

import os

import pytest
from filelock import FileLock
from tests.kernels.emulation import emulate

from paceline.kernels.native.calls import Kernels


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    """Tiers of other processors, which are `EMULATED`; compiled once for all workers of a run."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "emulated"
    folder.mkdir(exist_ok=True)
    with FileLock(folder / "lock"):
        return emulate(folder)
