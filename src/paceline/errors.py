"""What can go wrong, as a tree.

    PacelineError           what a caller can fix; its message is one sentence: what, and what to do
    ├── UsageError          an argument, setting, prompt or request that cannot be served
    ├── ModelError          a model that cannot be found, fetched, read or accelerated
    └── StoreError          a store of answers or texts that cannot be opened or used

The command line prints the message and exits with code 2. Anything else that escapes is a bug.
"""

from __future__ import annotations

__all__ = ["ModelError", "PacelineError", "StoreError", "UsageError"]


class PacelineError(Exception):
    """Base of every error that paceline raises on purpose."""


class UsageError(PacelineError, ValueError):
    """An argument, setting, prompt or request cannot be served as given."""


class ModelError(PacelineError):
    """A model cannot be found, fetched, read or accelerated."""


class StoreError(PacelineError):
    """A store of answers or texts cannot be opened or used."""
