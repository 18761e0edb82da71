"""ANPD: adaptive multi-level n-gram drafting (Ou, Chen and Tian 2024, arXiv 2404.08698, section 3).

For each n = 2..N a table maps the last n-1 tokens to the tokens that followed them in this text.
It is filled from the prompt and updated with every committed token. A draft grows token by token:
each step looks up the last n-1 tokens of committed plus drafted text, longest n first. References
have tables of their own, which are asked where those of the text know nothing.

    text: a b c d a b  ->  (b,) was followed by c, (a, b) by c    ->  draft c
                           then (b, c) by d, then (c, d) by a, …  ->  draft c d a b …
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from paceline.drafters.host import Host
from paceline.drafters.lookup import LookupDrafter, TextReader
from paceline.drafters.ngrams import LONGEST_RUN, MOST_NGRAMS, SHARDS, NGrams, new_ngrams
from paceline.drafters.settings import Settings, whole
from paceline.prefix import common_prefix
from paceline.records import TextStart
from paceline.tree import Tree


@dataclass(frozen=True)
class AnpdSettings(Settings):
    """Settings of `Anpd`.

    n: longest n-gram, 2 to 64, as each length has a table (the paper's N, 5 there).
    k: longest draft, >= 1 (the paper's K, 6 to 8 there). A miss at every level ends the draft
    early, and plans cut it to what pays, so its length adapts.
    branches: continuations to follow per context; 1 gives the paper's chain. With 2 or more, the
    draft is a tree of the likeliest paths, as many as fit.
    persist: keep what was learned when another text begins, in tables that all texts of a session
    share. If off, the tables hold the current text alone. Either way, a text that continues the
    last one, like the next turn of a conversation, is read only from where it is new.
    levels: "one" uses n-grams of length n alone, the paper's module without its lower levels
    (figure 10): a miss ends the draft.
    most: n-grams of each length to keep, at least 1024; beyond that, those counted longest ago are
    forgotten. References have tables of the same size.

    The defaults suit planned trees; with a fixed budget the paper's may do better.
    """

    n: int = whole(6, 2, LONGEST_RUN + 1)
    k: int = whole(32, 1)
    branches: int = whole(4, 1)
    persist: bool = False
    levels: Literal["all", "one"] = "all"
    most: int = whole(MOST_NGRAMS, SHARDS**2)


class Anpd(TextReader, LookupDrafter):
    """Drafts from n-gram tables of the text, then of its references, longest n-grams first.

    What followed in a reference never replaces what followed in the text. Tokens that were taken
    back stay counted: whoever wrote them is likely to write them again.

    ngrams: counts to continue, with the same settings; None for new ones.
    """

    def __init__(
        self, settings: AnpdSettings | None = None, ngrams: NGrams | None = None, **changes: Any
    ) -> None:
        super().__init__()
        own = replace(settings or AnpdSettings(), **changes)
        self.draft_length = own.k
        shortest = 1 if own.levels == "all" else own.n - 1
        self._new = partial(new_ngrams, shortest, own.n - 1, own.branches, own.most)
        self._ngrams = ngrams or self._new()
        self._kept = self._ngrams if own.persist else None
        self._references: list[tuple[int, ...]] = []
        self._reference_ngrams: NGrams | None = None

    @classmethod
    def on(cls, host: Host, settings: AnpdSettings) -> Anpd:
        """A drafter that shares its tables with others of its session, if they persist."""
        if not settings.persist:
            return cls(settings)
        return cls(settings, host.learn((Anpd, settings), lambda: cls(settings)._ngrams))

    def start(self, text: TextStart) -> None:
        """Count the n-grams of the context and the references, except those counted already. A text
        that must not be recorded has tables of its own."""
        references = [tuple(reference) for reference in text.references]
        if references != self._references:
            self._references = references
            known = self._new()
            for reference in references:
                known.count((), reference)
            self._reference_ngrams = known if references else None
        kept = self._kept if text.record else None
        if kept is None:
            same = common_prefix(self._text, text.context) == len(self._text)
            if self._ngrams is self._kept or not same:
                self._ngrams, self._text = self._new(), []
        elif self._ngrams is not kept:
            self._ngrams, self._text = kept, []
        self.resume(text)

    def propose_after(self, path: Sequence[int], budget: int) -> Tree:
        """The likeliest nodes, best first; ties go to the older parent."""
        tail = (*self._text[-self._ngrams.longest :], *path)
        return self._ngrams.draft(tail, budget, self.draft_length, self._reference_ngrams)

    def _learn(self, tokens: Sequence[int]) -> None:
        self._ngrams.count(self._text, tokens)
        super()._learn(tokens)
