"""What can go wrong: a `PacelineError`, which a caller can fix. Its message is one sentence: what,
and what to do. The command line prints it and exits with code 2.

Anything else that escapes is a bug.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class PacelineError(Exception):
    """Base of every error that paceline raises on purpose."""


class UsageError(PacelineError, ValueError):
    """An argument, setting, prompt or request cannot be served as given."""


class ModelError(PacelineError):
    """A model cannot be found, fetched, read or accelerated."""


class StoreError(PacelineError):
    """A store of answers or texts cannot be opened or used.

    kept: whether what was to be stored is stored all the same.
    """

    kept = False


class MergeError(StoreError):
    """The log of a datastore cannot be merged into its index. It still holds all documents."""

    kept = True


INTERRUPTIONS = KeyboardInterrupt, SystemExit, GeneratorExit
"""They end whatever a thread is doing. All other errors are about what it does, even those that are
no `Exception`, as a panic in a library written in Rust."""


def meant(name: str, known: Iterable[str]) -> str:
    """A clause for a message about an unknown name, " (did you mean x?)"; "" if none is close."""
    close = get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


@contextmanager
def writable(
    what: object, advice: str = "", kind: type[PacelineError] = UsageError
) -> Iterator[None]:
    """Raise an error of this kind, naming `what`, if the body cannot write, for example because a
    disk is full. advice: follows the reason."""
    try:
        yield
    except OSError as error:
        raise kind(f"cannot write {what}: {error.strerror or error}{advice}") from error


def check_known(what: str, known: Collection[str], *names: str) -> None:
    """Raise UsageError for the first of these names that is not known."""
    for name in names:
        if name not in known:
            raise UsageError(f"unknown {what} {name!r}: use one of {', '.join(known)}")


@contextmanager
def readable(what: object, kind: type[PacelineError] = UsageError) -> Iterator[None]:
    """Raise an error of this kind, naming `what`, if the body cannot read a file, or it is no UTF-8
    text."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise kind(f"cannot read {what}: it is not UTF-8 text") from error
    except OSError as error:
        raise kind(f"cannot read {what}: {error.strerror or error}") from error
