"""Settings common to all tests."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

import paceline
from paceline.models import cache
from paceline.planning import curve_store
from paceline.session import Session
from tests.forked import start_fork_server
from tests.shared_folder import shared_folder

# Tiny models are slower on several threads than on one; and tests may share few cores.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of processes that tests start

# A shell that starts tests in the background lets them, and all processes they start, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline: the first example of a test pays for imports and caches.
settings.register_profile("paceline", deadline=None, max_examples=60)
settings.load_profile("paceline")


def pytest_collection_finish() -> None:
    """What was imported stays: collecting garbage, and counting tensors, need not look at it."""
    gc.collect()
    gc.freeze()
    start_fork_server()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """`pytest -m gpu` is all there is for a machine with a GPU; others pass it over."""
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(autouse=True, scope="session")
def curves_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what the tests' models cost, what their files say and what was prepared of them out of the
    user's cache folder."""
    folder = shared_folder(tmp_path_factory, "paceline-cache")
    with pytest.MonkeyPatch.context() as patch:
        for module in (curve_store, cache):
            patch.setattr(
                module, "cache_root", lambda: Path(os.environ.get("PACELINE_CACHE") or folder)
            )
        # Every test that opens a model anew measures it: of eleven widths, a narrow one, one in
        # between and the widest will do.
        patch.setattr(curve_store, "_WIDTHS", (1, 8, 64))
        yield


@pytest.fixture(scope="session")
def default_model() -> Session:
    """The default model with its default method, as it is loaded; nobody changes it."""
    return paceline.load("smollm2-135m")


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where this test's own models are kept prepared; nothing is there yet."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "prepared"
