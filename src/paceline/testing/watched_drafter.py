"""A wrapper that checks a drafter against its contract."""

from __future__ import annotations

from functools import partialmethod
from typing import Any

import torch

from paceline.protocols import SHADOW_TOKENS, VIRTUAL_TOKENS, Drafter
from paceline.records import Round, TextStart
from paceline.testing.reference import require
from paceline.tree import SHADOWS, Tree


class WatchedDrafter(Drafter):
    """Sits between the loop and the drafter under test, and checks what passes between them. where:
    what is being checked, for messages. Raises AssertionError if that drafter raises or breaks its
    contract."""

    def __init__(self, drafter: Drafter, vocab_size: int, where: str) -> None:
        self.requires, self.sized_by = drafter.requires, drafter.sized_by
        self.layers, self.source_names = drafter.layers, drafter.source_names
        self.where = where
        self._drafter = drafter
        self._vocab_size = vocab_size
        self._rounds = 0

    def _call(self, verb: str, *given: Any) -> Any:
        try:
            return getattr(self._drafter, verb)(*given)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            raise AssertionError(f"{self.where}: {verb} raised {said}") from error

    observe_states: Any = partialmethod(_call, "observe_states")
    offer_states: Any = partialmethod(_call, "offer_states")
    report: Any = partialmethod(_call, "report")
    stop: Any = partialmethod(_call, "stop")
    waits: Any = partialmethod(_call, "waits")
    unread: Any = partialmethod(_call, "unread")

    def start(self, text: TextStart) -> None:
        """Forward, and check that the text is unchanged."""
        self._told("start", text)

    def resume(self, text: TextStart) -> None:
        self._told("resume", text)

    def complete(self, tree: Tree) -> Tree:
        """Forward, and check the tokens."""
        whole: Tree = self._call("complete", tree)
        self._check_tokens(whole)
        return whole

    def observe(self, round: Round) -> None:
        """Forward, and check that the logits are unchanged."""
        before = round.logits.clone()
        self._call("observe", round)
        require(
            torch.equal(before, round.logits),
            f"{self.where}: observe changed the logits of its round: work on a copy",
        )

    def propose(self, budget: int) -> Tree:
        """Forward, and check the tree; as a planner may, ask for several sizes now and then."""
        self._rounds += 1
        for asked in (budget // 2, budget)[self._rounds % 2 :]:
            tree: Tree = self._call("propose", asked)
            require(
                len(tree) <= asked,
                f"{self.where}: {len(tree)} nodes were proposed with a budget of {asked}",
            )
            self._check_tokens(tree)
        return tree

    def _check_tokens(self, tree: Tree) -> None:
        for token in tree.tokens:
            known = {
                "a token of the vocabulary": token < self._vocab_size,
                "a shadow": token >= SHADOWS and SHADOW_TOKENS in self.requires,
                "a virtual token": token < SHADOWS and VIRTUAL_TOKENS in self.requires,
            }
            require(
                any(known.values()),
                f"{self.where}: {token} is not {', '.join(known)} that the drafter requires of its "
                "target",
            )

    def _told(self, verb: str, text: TextStart) -> None:
        before = [list(tokens) for tokens in (text.context, *text.references)]
        self._call(verb, text)
        require(
            before == [list(tokens) for tokens in (text.context, *text.references)],
            f"{self.where}: {verb} changed the text that it was given: work on a copy",
        )
