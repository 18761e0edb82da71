"""One text in progress: its request, its tokens so far, and what went wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import torch

from paceline.errors import INTERRUPTIONS, UsageError
from paceline.logprobs import path_logprobs
from paceline.protocols import HIDDEN_STATES, TREES, Drafter, Matcher, Target, check_capabilities
from paceline.records import Path, Round, TextStart, TokenLogprob
from paceline.sampling import GREEDY, Sampler
from paceline.scout import Scout
from paceline.stopping import Stopping, cut_off_reason
from paceline.tree import Tree
from paceline.typical import Typical, check_typical, typical_walk
from paceline.verify import walk

T = TypeVar("T")

_MOST_FORCED = 64
"""Most forced tokens in a round in which the drafter is not asked."""


@dataclass
class Generation:
    """One text in progress.

    prompt: at least one token; `context` grows from it by every committed token.
    references: tokenised texts that the output may resemble, for drafters that copy.
    typical: accept what is likely enough; the text then differs from plain decoding's.
    budget: most nodes of a tree; None leaves that to the planner.
    matcher: says which tokens may come next; its `push` is a condition of `stopping`.
    logprobs: alternatives reported with each token's log-probability; None reports neither.
    record: see `TextStart`.
    error: why the text was aborted.

    Known once the text has joined a batch:
    slot: in the target. reused: prompt tokens found in the target's cache.
    ahead: tokens that the next pass must read before its root. has_read: whether the time of its
    next round is also that of its prompt. has_begun: whether it has had a round. reading: seconds
    spent on its prompt before that. follows: it waits for another text to read a shared prefix.

    Raises UsageError for an empty prompt, and for a sampler or a constraint that typical acceptance
    cannot use.
    """

    prompt: Sequence[int]
    drafter: Drafter
    stopping: Stopping
    sampler: Sampler = GREEDY
    references: Sequence[Sequence[int]] = ()
    typical: Typical | None = None
    budget: int | None = None
    matcher: Matcher | None = None
    logprobs: int | None = None
    record: bool = True
    context: list[int] = field(init=False)
    error: BaseException | None = field(init=False, default=None)
    slot: int = field(init=False, repr=False)
    reused: int = field(init=False, default=0)
    ahead: int = field(init=False, repr=False, default=0)
    has_read: bool = field(init=False, repr=False, default=False)
    has_begun: bool = field(init=False, repr=False, default=False)
    reading: float = field(init=False, repr=False, default=0.0)
    follows: bool = field(init=False, repr=False, default=False)
    _path_logprobs: tuple[TokenLogprob, ...] = field(init=False, repr=False, default=())
    _vocab_size: int = field(init=False, repr=False)
    _chains_only: bool = field(init=False, repr=False)
    _scout: Scout | None = field(init=False, repr=False, default=None)
    _asked: bool = field(init=False, repr=False, default=False)

    def __post_init__(self) -> None:
        if not self.prompt:
            raise UsageError("the prompt is empty: give at least one token to continue from")
        if self.typical is not None:
            check_typical(self.sampler, constrained=self.matcher is not None)
        self.prompt = tuple(self.prompt)  # the caller may change its own list
        self.context = list(self.prompt)
        if self.matcher is not None and not self.drafter.passive and self.budget != 0:
            self._scout = Scout(self.matcher.copy(), len(self.drafter.source_names))

    @property
    def output(self) -> list[int]:
        """The tokens generated so far."""
        return self.context[len(self.prompt) :]

    @property
    def finished(self) -> bool:
        """Whether the text has ended; `stopping.reason` says why."""
        return self.stopping.reason is not None

    def start_as(self, key: int) -> TextStart:
        """What its drafter is told when the text starts or resumes."""
        sampler = self.sampler
        if self.typical is not None:  # accepts likely tokens, whichever would be drawn
            sampler = replace(sampler, temperature=0.0)
        room = self.stopping.remaining
        return TextStart(self.context, self.references, sampler, key, room, self.record)

    def fit(self, target: Target) -> None:
        """Check that `target` can serve this text, and prepare both for it.

        Raises UsageError if the prompt does not fit or the drafter needs what `target` lacks.
        """
        check_capabilities(self.drafter, target)
        self._vocab_size = target.vocab_size
        self._chains_only = TREES not in target.capabilities
        check_prompt(self.prompt, target.vocab_size)
        # Tokens that the model does not have cannot be guesses.
        self.references = [one for one in self.references if _within(one, target.vocab_size)]
        if target.max_context is not None:
            room = target.max_context - len(self.prompt)
            if room < 1:
                raise UsageError(
                    f"the prompt has {len(self.prompt)} tokens but the model's context is "
                    f"{target.max_context}: shorten the prompt"
                )
            self.stopping.limit(room)
        if HIDDEN_STATES in self.drafter.requires:
            target.keep_states(self.drafter.layers)

    def propose(self, target: Target, budget: int) -> Tree:
        """The drafter's tree with forced tokens added, without guesses that the constraint forbids
        or beyond the token limit: they could never be accepted, nor fit the model's context."""
        if HIDDEN_STATES in self.drafter.requires:
            self.drafter.offer_states(partial(target.states, self.slot))
        self._asked = True
        tree = self.drafter.propose(budget)
        if self._scout is not None:
            virtual = any(token >= self._vocab_size for token in tree.tokens)
            whole = virtual or self.drafter.sized_by == "whole"
            tree = self._scout.extend(tree, budget) if whole else self._scout.admit(tree, budget)
        tree = tree.clip(self.stopping.remaining - 1)
        return tree.spine() if self._chains_only else tree

    def complete(self, tree: Tree) -> Tree:
        """The tree that the planner left, with the drafter's additions, or with forced tokens."""
        asked, self._asked = self._asked, False
        most = self.stopping.remaining - 1
        if not asked:
            return tree if self._scout is None else self._scout.forced(min(_MOST_FORCED, most))
        if not self._chains_only:
            return self.attempt(lambda: self.drafter.complete(tree).clip(most), tree)
        return tree

    def walk(self, tree: Tree, logits: torch.Tensor) -> Path:
        """The path that plain decoding takes in `tree`; with `typical`, one of likely guesses."""
        drawn = tree, logits, self.sampler, self.context, self.stopping
        if self.typical is not None:
            path = typical_walk(*drawn, self.typical)
        else:
            path = walk(*drawn, self.matcher)
        if self.logprobs is not None:  # here, as it is no drafting
            self._path_logprobs = path_logprobs(logits, path, self.logprobs)
        return path

    def observe(
        self, key: int, tree: Tree, logits: torch.Tensor, path: Path, prefill: bool
    ) -> Round:
        """Append the committed path to the context and let the drafter learn from the round.

        prefill: the pass also read a prompt.
        """
        begin = len(self.context) - len(self.prompt)
        self.context.extend(path.tokens)
        sources = self.drafter.report()
        if self._scout is not None:
            self._scout.observe(path.tokens)
            sources = (*sources, self._scout.report())
        round = Round(
            key,
            tree,
            logits,
            path,
            prefill,
            first=not begin,
            begin=begin,
            vocab_size=self._vocab_size,
            sources=sources,
            logprobs=self._path_logprobs,
            room=self.stopping.remaining + len(path.tokens) - 1,
        )
        self.drafter.observe(round)
        return round

    def attempt(self, work: Callable[[], T], otherwise: T) -> T:
        """What `work` returns. If it fails, that aborts the text, and this is `otherwise`. Raises
        an interruption, which is the thread's."""
        try:
            return work()
        except INTERRUPTIONS:
            raise
        except BaseException as error:
            self.fail(error)
            return otherwise

    def fail(self, error: BaseException) -> None:
        """Abort the text, for an error or an interruption."""
        self.error = self.error or error
        self.stopping.reason = self.stopping.reason or cut_off_reason(error)


def check_prompt(prompt: Sequence[int], vocab_size: int) -> None:
    """Raise UsageError for a prompt with tokens that the model does not have."""
    if not _within(prompt, vocab_size):
        wrong = next(token for token in prompt if not 0 <= token < vocab_size)
        raise UsageError(
            f"the prompt holds token {wrong} but the model's vocabulary ends at {vocab_size}: the "
            "tokenizer belongs to another model"
        )


def _within(tokens: Sequence[int], vocab_size: int) -> bool:
    return not tokens or 0 <= min(tokens) <= max(tokens) < vocab_size
