"""LLMA: copying from reference texts (Yang et al. 2023, "Inference with Reference",
arXiv 2304.04487, section 2).

Where the last tokens of the output occur in a reference, the tokens that follow there are proposed:
the model's answer is likely to continue as the reference does.

    reference: … insulin was made from the pancreases of cows …
    output:    It was made from            ->  draft: the pancreases of cows …

The caller chooses the references, which gives the paper's scenarios: the prompt with its retrieved
documents (retrieval-augmented), documents given with the request, stored outputs of similar earlier
queries (cache-assisted), earlier turns (multi-turn).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from paceline.drafters.confidence import copied_chain
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.settings import at_least
from paceline.drafters.suffix_index import Match, SuffixIndex
from paceline.prefix import common_prefix
from paceline.records import Round, TextStart
from paceline.tree import Tree

__all__ = ["Llma", "LlmaSettings"]


@dataclass(frozen=True)
class LlmaSettings:
    """Settings of `Llma`.

    n: match length that triggers a copy, >= 1 (the paper's tuned value is 1 throughout).
    k: copy length, >= 1 (the paper tunes it to 14 to 18). A copy ends with its reference, and the
    planner cuts it to what pays.
    tie: which of equally long matches to copy: a "random" one, as in the paper, or the "first", as
    in its code.
    seed: for random ties.

    Raises UsageError for a value out of range.
    """

    n: int = 1
    k: int = 32
    tie: Literal["random", "first"] = "random"
    seed: int = 0

    def __post_init__(self) -> None:
        at_least(1, n=self.n)
        at_least(1, k=self.k)


class Llma(LookupDrafter):
    """Copies along the reference that shares the longest suffix with the output.

    settings: see `LlmaSettings`. changes: fields to override, by name.

    Only the output is matched, as in the paper, not the prompt, which is a reference itself.
    """

    def __init__(self, settings: LlmaSettings | None = None, **changes: Any) -> None:
        own = replace(settings or LlmaSettings(), **changes)
        self.match_length = own.n
        self.copy_length = own.k
        self._tie: Literal["random", "first"] = own.tie
        self._seed = own.seed
        self._references: list[tuple[int, ...]] = []
        self._prompt: list[int] = []
        self._index = SuffixIndex(seed=own.seed, tie=own.tie)
        self._match: Match = self._index.begin()
        self._said: list[int] = []
        # Match length after each token of the output.
        self._lengths: list[int] = []

    def start(self, text: TextStart) -> None:
        """Index prompt and references. The next turn of a conversation with the same references
        adds only its new tokens, as a text of their own."""
        context, known = text.context, len(self._prompt)
        texts = [tuple(reference) for reference in text.references]
        if list(context[:known]) != self._prompt or texts != self._references:
            known = 0
            self._index = SuffixIndex(seed=self._seed, tie=self._tie)
            self._references = texts
            for reference in texts:
                self._index.add(reference)
        self._index.add(context[known:])
        self._prompt = list(context)
        self._match = self._index.begin()
        self._said, self._lengths = [], []

    @property
    def knows_more(self) -> bool:
        """Whether there are references."""
        return bool(self._references)

    def resume(self, text: TextStart) -> None:
        """Follow the output through the index again from where it changed."""
        output = text.context[len(self._prompt) :]
        if len(output) == 0 or list(text.context[: len(self._prompt)]) != self._prompt:
            self.start(text)
            return
        known = common_prefix(self._said, output)
        del self._said[known:], self._lengths[known:]
        # A match depends on the tokens it covers, and on none before them.
        matched = self._lengths[-1] if self._lengths else 0
        self._match = self._index.begin()
        for token in self._said[known - matched :]:
            self._match.advance(token)
        self._follow(output[known:])

    def observe(self, round: Round) -> None:
        """Follow the committed tokens through the index."""
        self._follow(round.path.tokens)

    def propose_after(self, path: Sequence[int], budget: int) -> Tree:
        """A chain of up to `k` tokens copied from the reference."""
        match = self._match.copy() if path else self._match
        for token in path:
            match.advance(token)
        count = min(self.copy_length, budget)
        tokens, matched = self._index.continuation(match, count, minimum=self.match_length)
        return copied_chain(tokens, matched)

    def _follow(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._match.advance(token)
            self._said.append(token)
            self._lengths.append(self._match.length)
