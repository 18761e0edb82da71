"""PPD: parallel prompt decoding (Chen et al. 2024, "Hardware-Aware Parallel Prompt Decoding for
Memory-Efficient Acceleration of LLM Inference", arXiv 2405.18628; thesis, chapters 4.5 and 5).

Trained prompt tokens follow the text, and the model reads them like any token; the i-th one's row
guesses the token i places after the next one. Each guess carries prompt tokens of its own, so one
pass checks this round's guesses and makes the next round's.

    text … a, root b        S1 follows b and guesses the token after the next, S2 the one after
                            that; here both also follow the guess c
    tree: root ─┬─ c ─┬─ d
                │     └─ S1 ─ S2
                └─ S1 ─ S2

    c is right, d is not, the target says e instead: the next root is e, and the rows of S1 and S2
    after c have the guesses for the two tokens after e.

Guesses at depth i come from the i-th prompt token after the last accepted node. The number of these
is the *state*. In the paper each state has a tree (`paceline.planning.ppd.dynamic_tree`); here each
round has one, by the confidence of its guesses (`paceline.planning.ppd.round_tree`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from paceline.drafters.host import Host
from paceline.drafters.parts import PartsSettings, find_parts
from paceline.drafters.prompt_tokens import PromptGuesses, PromptTokens, acceptance_of
from paceline.drafters.settings import at_least
from paceline.errors import UsageError
from paceline.planning.ppd.adaptive_tree import AdaptiveTree, Limits
from paceline.planning.ppd.tree_search import FittedTree
from paceline.planning.sizing import MOST_WHOLE
from paceline.protocols import TREES, VIRTUAL_TOKENS, Drafter, SizedBy
from paceline.records import Round, TextStart
from paceline.tree import EMPTY, Tree


@dataclass(frozen=True)
class PpdSettings(PartsSettings):
    """Settings of `Ppd`, and those of `PartsSettings`.

    size: most guesses and prompt tokens of a tree, without the root and the prompt tokens after it,
    as the paper counts; 0 takes the size that promises most on this machine.
    width: most rows of a pass, all counted; an alternative to `size`.
    shape: what selects the tree's guesses and prompt tokens: the guesses' confidence in this round,
    or the acceptance table next to the parts, which gives every round in a state the same tree (the
    paper's; always used with a size). In a static tree all guesses have all prompt tokens, so there
    is one state: what the paper compares with (figure 6.6a).
    """

    kind = PromptTokens

    size: int = 0
    width: int = 0
    shape: Literal["confidence", "table", "static"] = "confidence"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size != 0:
            at_least(2, size=self.size)
        if self.width != 0:
            at_least(2, width=self.width)
        if self.size and self.width:
            raise UsageError("ppd takes a size or a width, not both")


class Ppd(Drafter):
    """Guesses by prompt tokens that were trained for this model.

    host: the model.
    settings: see `PpdSettings`. changes: fields to override, by name.

    Weights of guesses are their chances to be accepted. Those of prompt tokens are 0, since they
    never are, though without them the next round has no guesses.

    Raises ModelError if there are no usable prompt tokens for this model, UsageError for a size out
    of range or a target that takes no virtual tokens.
    """

    requires = frozenset({TREES, VIRTUAL_TOKENS})
    sized_by: SizedBy = "whole"

    def __init__(self, host: Host, settings: PpdSettings | None = None, **changes: Any) -> None:
        own = replace(settings or PpdSettings(), **changes)
        found = find_parts(PromptTokens, own.parts, host.fingerprint)
        table = acceptance_of(found, host.target.vocab_size)
        floor = table.distances if own.shape == "static" else 1
        limits = Limits(own.size, own.width, found.config.epts, floor)
        if 0 < own.size < limits.least:
            raise UsageError(
                f"size must be at least {limits.least} (a guess and its prompt tokens), got "
                f"{own.size}"
            )
        if 0 < own.width < limits.narrowest:
            raise UsageError(
                f"width must be at least {limits.narrowest} (the root, a guess, and the prompt "
                f"tokens of both), got {own.width}"
            )
        # What one text shows about the worth of guesses is known in the next.
        self._tree: AdaptiveTree = host.learn(
            (AdaptiveTree, own, table), lambda: AdaptiveTree(table, host.curve, limits, host.costs)
        )
        self._tree.fitting(MOST_WHOLE)  # slow the first time: better here than in a round
        self._guesses = PromptGuesses(found, host, table.ranks, self._tree.observe)
        self._by_table = own.shape != "confidence" or own.size > 0
        self._most = (own.width or MOST_WHOLE) - 1

    def survey(self) -> list[FittedTree]:
        """What trees of each width promise on the host's curve, see `survey_widths`."""
        return self._tree.survey()

    def start(self, text: TextStart) -> None:
        """Begin without guesses; what was learned about their worth is kept. References are
        ignored."""
        self._guesses.start(text)

    def propose(self, budget: int) -> Tree:
        """The tree for this round, or for the state that the last one led to; empty if not even a
        guess with a prompt token fits, or nothing is worth its time."""
        tree = self._tree.fitting(budget)
        if tree is None:
            return EMPTY
        if self._by_table:
            state = tree.states[min(len(self._guesses.tokens), tree.prompt_tokens)]
        else:
            state = self._tree.of_round(self._guesses.shares, min(budget, self._most))
        return state.nodes(self._guesses.tokens, self._guesses.first)

    def observe(self, round: Round) -> None:
        """Judge earlier guesses, and read the next ones after the last accepted node."""
        self._guesses.observe(round)
        if len(round.tree):  # while it is switched off, there is no tree to adapt
            self._tree.follow(self._guesses.length - 1)
