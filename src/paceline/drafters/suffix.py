"""SuffixDecoding: counts after suffixes of all lengths (Oliaro et al. 2024, arXiv 2411.04975,
section 4).

The end of the text is looked up in the text and in the session's earlier answers. For several
match lengths the likeliest continuations by counts make a tree; the one with the most expected
accepted tokens, the sum of its nodes' chances, is proposed.

    answers so far: … return self.value … return self.value … return self.size …
    text: … return self.   ->  draft: value (2 of 3), size (1 of 3), …

The paper counts in suffix trees; suffix arrays of the text read backwards give the same counts. Its
score trusts shares of few sightings, which are discounted here (`follower_confidence`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.datastore import BORDER, LONGEST, PROMPT_TOKENS, GrowingSuffixArray, Search
from paceline.drafters.host import Host
from paceline.drafters.known_texts import NearTexts
from paceline.drafters.lookup import FOLLOWER_DOUBT, TextLookup
from paceline.drafters.settings import Settings, whole
from paceline.records import TextStart
from paceline.tree import Tree


@dataclass(frozen=True)
class SuffixSettings(Settings):
    """Settings of `Suffix`.

    k: depth of the tree, >= 1 (the paper: 64 with the match); the planner cuts it.
    factor: most nodes of a tree per matched token, >= 1 (the paper's alpha, of 1 to 4); the planner
    cuts it.
    lengths: match lengths to try in text and answers each, longest first, >= 1.
    most: tokens of answers to keep in memory, >= 1024; the oldest answers are dropped.
    near: answers with a long match to search separately, see `NearTexts`, >= 0 (the paper: 0).
    persist: keep the session's answers; if off, only the text itself is searched.
    """

    k: int = whole(32, 1)
    factor: int = whole(64, 1)
    lengths: int = whole(3, 1)
    most: int = whole(1 << 17, 1024)
    near: int = whole(16, 0)
    persist: bool = True


class Answers:
    """A session's answers, in memory.

    most: tokens to keep.
    """

    def __init__(self, most: int) -> None:
        self.array = GrowingSuffixArray()
        self._most = most

    def add(self, tokens: Sequence[int]) -> None:
        """Keep one more; beyond `most` tokens the oldest quarter is dropped at once."""
        self.array.add([BORDER, *tokens[-self._most + 1 :]])
        if len(self.array) > self._most:
            known = self.array.tokens
            borders = (known == BORDER).nonzero()[0]
            after = borders[borders >= len(known) - self._most * 3 // 4]
            self.array.drop(int(after[0]) if len(after) else int(borders[-1]))


class Suffix(TextLookup):
    """Guesses by counts of continuations after matches of several lengths.

    answers: those known already; None for none.
    """

    def __init__(
        self, settings: SuffixSettings | None = None, answers: Answers | None = None, **changes: Any
    ) -> None:
        super().__init__()
        own = replace(settings or SuffixSettings(), **changes)
        self._search = Search(depth=own.k, doubt=FOLLOWER_DOUBT, per_match=own.factor)
        self._lengths, self._persist = own.lengths, own.persist
        self._answers = answers or Answers(own.most)
        self._near = NearTexts(own.near, own.k)
        self._prompt, self._record = 0, True

    @classmethod
    def on(cls, host: Host, settings: SuffixSettings) -> Suffix:
        """One for a session, which shares its answers with the others."""
        return cls(settings, host.learn((Suffix, settings), lambda: Answers(settings.most)))

    def start(self, text: TextStart) -> None:
        super().start(text)
        self._near.forget()
        self._prompt, self._record = len(text.context), text.record

    def stop(self) -> None:
        """Add the answer to the session's, if it may be recorded."""
        if self._persist and self._record and len(self._text) > self._prompt:
            self._answers.add(self._text[max(0, self._prompt - PROMPT_TOKENS) :])
        self._prompt = len(self._text)

    @property
    def knows_more(self) -> bool:
        """Whether the session has answered before."""
        return self._persist and len(self._answers.array) > 0

    def propose_after(self, path: Sequence[int], budget: int) -> Tree:
        """The tree with the best score."""
        tail, search, lengths = self._tail(path, LONGEST), self._search, self._lengths
        found = [self._own.look_up_lengths(tail, budget, search, lengths)]
        if self._persist:
            answers = self._answers.array
            if not path:
                self._near.take(answers.look_up(tail, 1, search), answers)
            found.append(answers.look_up_lengths(tail, budget, search, lengths))
            found.append(self._near.look_up(tail, budget))
        tree, _ = max(found, key=lambda one: one[1])
        return tree
