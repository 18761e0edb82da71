"""How many n-grams are known, as neither implementation needs to tell."""

from __future__ import annotations

from paceline.drafters.ngrams import NGrams, _CountedNGrams
from paceline.kernels.native.calls import kernels


def sizes(known: NGrams) -> list[int]:
    """Number of known n-grams, by length."""
    if isinstance(known, _CountedNGrams):
        return [sum(table._sizes) for table in known._tables]
    lengths = range(known.shortest, known.longest + 1)
    return [kernels().ngrams_size(known._held, length) for length in lengths]
