"""Products in a process that was forked from one that has run some."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.c_library import needs_library

pytestmark = needs_library

FORKING = """
import os, torch
from paceline.kernels.blocks import in_floats

torch.set_num_threads(2)
rows, large = torch.randn(9, 512), torch.randn(400, 400)
matrix = in_floats(torch.randn(512, 512))
expected, product = matrix.product(rows), large @ large + large.exp()
child = os.fork()
if child:
    print(os.waitpid(child, 0)[1])
else:
    large @ large + large.exp()
    os._exit(not torch.equal(matrix.product(rows), expected))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_does_not_wait_for_threads_it_does_not_have() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", FORKING], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        said, _ = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        raise
    assert said.split() == ["0"]
