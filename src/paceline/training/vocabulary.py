"""What is frequent in training texts: tokens a drafter can guess, and n-grams it will meet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch

from paceline.errors import UsageError
from paceline.training.dataset import Text

__all__ = ["frequent_ngrams", "frequent_tokens"]


def frequent_tokens(
    texts: Iterable[Text], count: int, size: int, always: Iterable[int]
) -> torch.Tensor:
    """Ids [count] int64, ascending: the most frequent tokens of answers.

    size: of the whole vocabulary. always: taken first, e.g. tokens that end a text.

    If the answers hold too few, tokens of prompts follow, including those of texts without answers,
    and then the lowest ids, which a tokenizer that learned by merging gave to the most frequent
    pieces.

    Raises UsageError unless 1 <= count <= size.
    """
    if not 1 <= count <= size:
        raise UsageError(f"the model has {size} tokens: a vocabulary of {count} cannot be made")
    answers: Counter[int] = Counter()
    prompts: Counter[int] = Counter()
    for text in texts:
        prompts.update(text.tokens[: text.first + 1])
        answers.update(text.tokens[text.first + 1 :])
    order = (always, _by_frequency(answers), _by_frequency(prompts), range(size))
    chosen = dict.fromkeys(token for tokens in order for token in tokens)
    return torch.tensor(sorted(list(chosen)[:count]))


def frequent_ngrams(texts: Iterable[Sequence[int]], order: int, count: int) -> torch.Tensor:
    """Ids [at most count, order] int32: the most frequent n-grams, most frequent first, ties by
    lowest ids; n-grams that occur once are left out."""
    counts: Counter[tuple[int, ...]] = Counter()
    for text in texts:
        counts.update(zip(*(text[shift:] for shift in range(order))))
    often = [ngram for ngram in _by_frequency(counts) if counts[ngram] > 1]
    return torch.tensor(often[:count], dtype=torch.int32).view(-1, order)


_Counted = TypeVar("_Counted", int, tuple[int, ...])


def _by_frequency(counts: Counter[_Counted]) -> list[_Counted]:
    return sorted(counts, key=lambda entry: (-counts[entry], entry))
