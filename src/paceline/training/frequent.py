"""What is frequent in training texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median_low
from typing import TypeVar

import torch

from paceline.training.dataset import Text

_MOST_COUNTED = 1 << 20  # different n-grams, of some 200 bytes each

_Counted = TypeVar("_Counted", int, tuple[int, ...])


def frequent_tokens(
    texts: Iterable[Text], count: int, size: int, always: Iterable[int]
) -> torch.Tensor:
    """Ids [count] int64, ascending: the most frequent tokens of answers.

    count: 1 to `size`, which is that of the whole vocabulary. always: taken first, e.g. tokens that
    end a text. If the answers hold too few, tokens of prompts follow, including those of texts
    without answers, and then the lowest ids, which a tokenizer that learned by merging gave to the
    most frequent pieces.
    """
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
    lowest ids; n-grams that occur once are left out. If there are very many, those that are rare so
    far are forgotten now and then, as all of them would fill the memory."""
    counts: Counter[tuple[int, ...]] = Counter()
    for text in texts:
        counts.update(zip(*(text[shift:] for shift in range(order))))
        if len(counts) > _MOST_COUNTED:
            rare = median_low(counts.values())
            counts = Counter({ngram: each for ngram, each in counts.items() if each > rare})
    often = [ngram for ngram in _by_frequency(counts) if counts[ngram] > 1]
    return torch.tensor(often[:count], dtype=torch.int32).view(-1, order)


def _by_frequency(counts: Counter[_Counted]) -> list[_Counted]:
    return sorted(counts, key=lambda entry: (-counts[entry], entry))
