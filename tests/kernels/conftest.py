"""What tests of kernels share."""

from __future__ import annotations

import pytest
from tests.kernels.emulation import emulate

from paceline.kernels.native.calls import Kernels


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    """Tiers of other processors, which are `EMULATED`."""
    return emulate(tmp_path_factory.mktemp("emulated"))
