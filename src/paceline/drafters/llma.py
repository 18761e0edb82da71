"""LLMA: copying from reference texts (Yang et al. 2023, "Inference with Reference",
arXiv 2304.04487, section 2).

Where the last tokens of the output occur in a reference, the tokens that follow there are proposed:
the model's answer is likely to continue as the reference does.

    reference: … insulin was made from the pancreases of cows …
    output:    It was made from            ->  draft: the pancreases of cows …

The caller chooses the references, as in the paper's scenarios: retrieved documents, stored outputs
of similar earlier queries, earlier turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from paceline.datastore import BORDER, LONGEST, Found, GrowingSuffixArray, Search
from paceline.drafters.lookup import LookupDrafter, copied_chain
from paceline.drafters.settings import Settings, whole
from paceline.errors import UsageError
from paceline.records import Round, TextStart
from paceline.tree import EMPTY, Tree

_COMPARED = 128  # tokens of a match that are compared, at least
_TRIED = 1024  # places that are compared beyond what the array compares, at most


@dataclass(frozen=True)
class LlmaSettings(Settings):
    """Settings of `Llma`.

    n: match length that triggers a copy, >= 1 (the paper's tuned value is 1 throughout).
    k: copy length, >= 1 (the paper tunes it to 14 to 18). A copy ends with its reference, and the
    planner cuts it to what pays.
    tie: which of equally long matches to copy: a "random" one, as in the paper, or the "first", as
    in its code.
    seed: for random ties, >= 0.
    """

    n: int = whole(1, 1)
    k: int = whole(32, 1)
    tie: Literal["random", "first"] = "random"
    seed: int = whole(0, 0)


class Llma(LookupDrafter):
    """Copies along the reference that shares the longest suffix with the output.

    Only the output is matched, as in the paper, not the prompt, which is a reference itself. The
    official code tries n-grams of five tokens down to one; here a match has any length, and those
    that agree in the last `_COMPARED` tokens count as equally long.
    """

    def __init__(self, settings: LlmaSettings | None = None, **changes: Any) -> None:
        own = replace(settings or LlmaSettings(), **changes)
        self.match_length = own.n
        self.copy_length = own.k
        self._search = Search(least=min(own.n, LONGEST), hits=1, depth=1)
        self._seed = own.seed if own.tie == "random" else None
        self._forget()

    def _forget(self) -> None:
        self._references: list[tuple[int, ...]] = []
        self._prompt: list[int] = []
        self._said: list[int] = []
        self._array = GrowingSuffixArray()
        # Of places: the lowest is copied. So the choice does not change from round to round.
        self._random = np.random.default_rng(self._seed)
        self._priorities = self._random.random(0)

    def start(self, text: TextStart) -> None:
        """Index prompt and references. The next turn of a conversation with the same references
        adds only its new tokens, as a text of their own. Raises UsageError for ids that are
        negative or do not fit into 32 bits."""
        context, known = text.context, len(self._prompt)
        texts, new = [tuple(reference) for reference in text.references], list[Sequence[int]]()
        same = list(context[:known]) == self._prompt and texts == self._references
        interrupted = not self._array.whole or len(self._array) != len(self._priorities)
        if interrupted or not same:
            known, new = 0, [*texts]
            self._forget()
        new.append(context[known:])
        if any(min(each, default=0) < 0 for each in new):
            raise UsageError("token ids must be at least 0")
        self._array.add([token for each in new for token in (BORDER, *each)])
        drawn = self._random.random(len(self._array) - len(self._priorities))
        self._priorities = np.concatenate([self._priorities, drawn])
        self._references, self._prompt, self._said = texts, list(context), []

    @property
    def knows_more(self) -> bool:
        """Whether there are references."""
        return bool(self._references)

    def resume(self, text: TextStart) -> None:
        """Take over the output as it is now."""
        prompt = len(self._prompt)
        if len(text.context) == prompt or list(text.context[:prompt]) != self._prompt:
            self.start(text)
        else:
            self._said = list(text.context[prompt:])

    def observe(self, round: Round) -> None:
        """Continue the output."""
        self._said += round.path.tokens

    def propose_after(self, path: Sequence[int], budget: int) -> Tree:
        """A chain of up to `k` tokens copied from the reference."""
        output = [*self._said[-_COMPARED - self.match_length :], *path]
        count = min(self.copy_length, budget)
        found = self._array.look_up(output, min(1, count), self._search)
        if not found.matched:
            return EMPTY
        place, matched = self._chosen(found, output)
        if matched < self.match_length:
            return EMPTY
        _, tokens = self._array.around(place, 0, count)
        return copied_chain(tokens.tolist(), matched)

    def _chosen(self, found: Found, output: Sequence[int]) -> tuple[int, int]:
        """One of the places after the longest match, and the match's length."""
        places = self._array.places(found)
        if found.matched == LONGEST:
            # Text that repeats itself has any number of such places: of more, an even sample.
            places = places[:: 1 + (len(places) - 1) // _TRIED]
        places, matched = self._array.longest(places, found.matched, output)
        order = places if self._seed is None else self._priorities[places]
        return int(places[order.argmin()]), matched
