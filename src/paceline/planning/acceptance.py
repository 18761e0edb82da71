"""How often a drafter's guesses are right, by distance and rank; trees are shaped accordingly.

Measured once on held-out texts, and kept in a JSON file next to the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import isfinite
from operator import mul
from pathlib import Path
from typing import Any

from paceline.errors import ModelError, readable, writable
from paceline.json_files import json_bytes, parse_json, replace_file

_FORMAT = 1
_KIND = "acceptance"
_ROUNDING = 1e-6  # of probabilities written with six digits


@dataclass(frozen=True)
class AcceptanceTable:
    """Marginal probabilities that a guess is right (PPD, section 5.6: p_k).

    rows: rows[d - 1][k - 1] is the probability that the k-th likeliest guess for the token at
    distance d is the target's token, whatever the tokens in between. All rows have one length; a
    row need not decrease, since it is a measurement.

    Raises ValueError if a row is empty, differs in length, holds anything but probabilities, or
    sums to more than 1.
    """

    rows: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if not self.rows or not self.rows[0]:
            raise ValueError("an acceptance table needs at least one distance and one rank")
        for distance, row in enumerate(self.rows, start=1):
            where = f"distance {distance} of the acceptance table"
            if len(row) != len(self.rows[0]):
                raise ValueError(f"{where} has {len(row)} ranks, not {len(self.rows[0])}")
            if not all(isfinite(share) and 0 <= share <= 1 for share in row):
                raise ValueError(f"{where} has a value that is not a probability: {row}")
            if sum(row) > 1 + _ROUNDING:
                raise ValueError(f"{where} adds up to {sum(row):.6f}, which is more than 1")

    @property
    def distances(self) -> int:
        """How far ahead the drafter guesses: its number of prompt tokens or heads."""
        return len(self.rows)

    @property
    def ranks(self) -> int:
        """How many guesses there are per token."""
        return len(self.rows[0])

    @property
    def chain(self) -> float:
        """Expected number of right guesses in the chain of likeliest guesses."""
        return float(sum(accumulate((row[0] for row in self.rows), mul)))

    def up_to(self, distance: int) -> AcceptanceTable:
        """The table of a drafter that guesses no further ahead than `distance`, >= 1."""
        return AcceptanceTable(self.rows[:distance])

    def save(self, path: Path, about: Mapping[str, Any]) -> None:
        """Write the table atomically, replacing an earlier one.

        about: what it was measured on, as JSON values; for human readers only.

        Raises ModelError if the file cannot be written.
        """
        record = {"format": _FORMAT, "kind": _KIND, "about": dict(about), _KIND: self.rows}
        with writable(path, kind=ModelError):
            replace_file(path, json_bytes(record))

    @classmethod
    def load(cls, path: Path) -> AcceptanceTable:
        """Read what `save` wrote. Raises ModelError if it cannot be read or is no table."""
        with readable(f"the acceptance table {path}", ModelError):
            content = path.read_bytes()
        try:
            record = parse_json(content.decode())
            if (record["format"], record["kind"]) != (_FORMAT, _KIND):
                raise ValueError("it has another format or kind")
            return cls(tuple(tuple(float(share) for share in row) for row in record[_KIND]))
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise ModelError(
                f"{path} is not an acceptance table ({error}): train the parts again"
            ) from error


def unmeasured(distances: int, ranks: int = 10) -> AcceptanceTable:
    """A table for guesses not measured yet. It falls with distance and rank about as measured ones
    do, and is a little low, so that trees start small."""
    return AcceptanceTable(
        tuple(
            tuple(0.4 / distance / rank**1.75 for rank in range(1, ranks + 1))
            for distance in range(1, distances + 1)
        )
    )
