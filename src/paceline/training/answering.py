"""Batches of prompts answered by the target, through the one decoding loop."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from paceline.drafters import make_drafter
from paceline.errors import UsageError
from paceline.loop import Generation, decode
from paceline.prompts import Conversation, PromptRecord
from paceline.session import Session
from paceline.stopping import Stopping
from paceline.training.asking import Asking
from paceline.training.data import Answer


@dataclass
class Answered(Conversation):
    """One prompt of an order, and the answers to its turns.

    too_long: whether it ended because more was said than the longest prompt may hold.
    """

    number: int = 0
    answers: list[Answer] = field(default_factory=list)
    too_long: bool = False

    @property
    def tokens(self) -> int:
        """New tokens."""
        return sum(len(answer.tokens) for answer in self.answers)

    def add(self, prompt: Sequence[int], tokens: list[int], reason: str, text: str) -> None:
        """Add the answer to the next turn, in tokens and as text; reason: why it ended."""
        record, turn = self.record, f"#{len(self.answers) + 1}" if len(self.turns) > 1 else ""
        about = record.id + turn, record.task, record.licence, record.source
        self.answers.append(Answer(*about, list(prompt), tokens, reason))
        self.take(text)


def answer_batch(
    session: Session,
    first: int,
    records: Sequence[PromptRecord],
    asking: Asking,
    on_tokens: Callable[[int], None],
) -> list[Answered]:
    """Answer the prompts together, turn by turn, with the target's own answers in between.

    first: the number of the first prompt in the overall order. Number and seed alone decide what
    is sampled, so nothing depends on what was answered before.
    on_tokens: called with the count of new tokens as they come.

    Raises UsageError, naming the prompt, if it cannot be encoded or the chat template rejects it.
    """
    template = session.tokenizer.chat_template
    conversations = [Answered(each, template, number) for number, each in enumerate(records, first)]
    # Start with an empty cache: a prefix read in another pass may differ in its last bits, and
    # after an interruption there would be none.
    session.target.forget()
    longest = min(asking.longest_prompt, (session.target.max_context or inf) - 1)
    active = conversations
    while active:
        asked = [(one, _encoded(session, one)) for one in active]
        for one, ids in asked:
            one.too_long = len(ids) > longest
        fitting = [(one, ids) for one, ids in asked if not one.too_long]
        generations = [_generation(session, one, ids, asking) for one, ids in fitting]
        for round in decode(session.target, generations, asking.budget):
            on_tokens(len(round.path.tokens))
        for (one, _), generation in zip(fitting, generations):
            tokens, reason = generation.output, generation.stopping.reason or "interrupted"
            text = session.tokenizer.decode(tokens, skip_special_tokens=True)
            one.add(generation.prompt, tokens, reason, text)
        active = [one for one, _ in fitting if not one.ended]
    return conversations


def _encoded(session: Session, one: Answered) -> list[int]:
    try:
        return session.encode(one.ask())
    except UsageError as error:
        record = one.record
        raise UsageError(f"{record.where}, prompt {record.id}: {error}") from error


def _generation(session: Session, one: Answered, ids: list[int], asking: Asking) -> Generation:
    # Noise depends only on seed and position: with one seed, all answers would share it.
    name = f"{asking.seed} {one.number} {len(one.answers)}"
    seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    return Generation(
        ids,
        make_drafter(asking.method, session.host),
        Stopping(asking.max_new_tokens, session.eos_ids),
        asking.options(seed).sampler(),
        session.encode_references(one.record.references),
    )
