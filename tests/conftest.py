"""Settings common to all tests."""

from __future__ import annotations

import torch
from hypothesis import settings

# Tiny models are slower on several threads than on one; and tests may share few cores.
torch.set_num_threads(1)

# No deadline: the first example of a test pays for imports and caches.
settings.register_profile("paceline", deadline=None)
settings.load_profile("paceline")
