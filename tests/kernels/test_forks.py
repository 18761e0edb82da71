"""Products in a process that was forked from one that has run some."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from tests.c_library import needs_library

from paceline.kernels.blocks import in_floats

pytestmark = needs_library


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_does_not_wait_for_threads_it_does_not_have() -> None:
    rows, large = torch.randn(9, 512), torch.randn(400, 400)
    matrix, threads = in_floats(torch.randn(512, 512)), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        expected, product = matrix.product(rows), large @ large + large.exp()
        child = os.fork()
        if not child:
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(60)  # which ends a process that waits
                same = torch.equal(large @ large + large.exp(), product)
                os._exit(not (same and torch.equal(matrix.product(rows), expected)))
            finally:
                os._exit(1)
    finally:
        torch.set_num_threads(threads)
    assert os.waitpid(child, 0)[1] == 0
