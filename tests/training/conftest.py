"""What trainings in tests start from."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.training.shared import make_data


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers of the toy model."""
    return make_data(tmp_path_factory.mktemp("answers"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """States that the tests of a module share."""
    return tmp_path_factory.mktemp("states")
