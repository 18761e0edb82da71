"""Training data from the target itself: its own answers to prompts (PPD, section 4.3.2).

A shard covers a fixed range of the prompts, in an order set by the seed, and its bytes depend on
nothing else: a process killed at any moment leaves whole shards, and the next one continues to the
same data.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from paceline.drafters import make_drafter
from paceline.errors import UsageError
from paceline.generation import check_prompt
from paceline.loop import Generation, decode
from paceline.models.cache import hash_file
from paceline.prompts import Conversation, PromptRecord
from paceline.session import Session
from paceline.stopping import Stopping
from paceline.training.asking import Asking
from paceline.training.data import Answer, Manifest, Shard, load_manifest, pack
from paceline.training.folder import check_same_run, held, write_file
from paceline.training.order import PromptFile, interleave

SHARD_PROMPTS = 64
"""Prompts per shard; a conversation is one prompt."""


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

    Raises UsageError, naming the prompt, if it cannot be encoded, the chat template rejects it, or
    it holds tokens that the model does not have.
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
        ids = session.encode(one.ask())
        check_prompt(ids, session.target.vocab_size)
        return ids
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


def make_data(
    session: Session,
    files: Sequence[PromptFile],
    tokens: int,
    folder: Path,
    asking: Asking,
    about: dict[str, Any] | None = None,
    on_tokens: Callable[[int], None] = lambda count: None,
) -> Manifest:
    """Let the target answer prompts until there are `tokens` new tokens, and keep the answers.

    files: asked in turns, see `interleave`; if the prompts run out, there are fewer tokens; since
    answers are whole, there may be some more. folder: new, or with data of the same run, which is
    continued, perhaps to more tokens; damaged or missing shards are made again. about: command,
    machine and versions, for readers of the manifest. on_tokens: called with the count of new
    tokens as they come, and of those already there.

    Raises UsageError for a number below 1, and for a folder that holds other data, cannot be
    written or is in use by another process.
    """
    if tokens < 1:
        raise UsageError(f"tokens must be at least 1, got {tokens}")
    records, info = interleave(files, asking.seed), session.target.describe()
    # What the bytes of the shards depend on, besides machine and versions.
    run = {
        "model": session.fingerprint,
        "dtype": info.dtype,
        "weights": info.weights,
        "prompts": [file.as_json() for file in files],
        **asdict(asking),
        "shard_prompts": SHARD_PROMPTS,
    }
    with held(folder):
        manifest = load_manifest(folder) or Manifest(run, {}, tokens)
        check_same_run(folder, manifest.run, run, "data made")
        manifest.about, manifest.wanted, manifest.complete = about or {}, tokens, False
        manifest.save(folder)
        shards, missing = manifest.shards, tokens
        for number, first in enumerate(range(0, len(records), SHARD_PROMPTS)):
            if missing <= 0:
                break
            some = records[first : first + SHARD_PROMPTS]
            if number < len(shards) and _can_stay(folder, shards[number], len(some), missing):
                on_tokens(shards[number].tokens)
            else:
                found: list[Answered] = []
                while len(found) < len(some) and sum(one.tokens for one in found) < missing:
                    asked = len(found)
                    batch = some[asked : asked + asking.batch]
                    found += answer_batch(session, first + asked, batch, asking, on_tokens)
                shards[number : number + 1] = [write_shard(folder, number, found)]
                manifest.save(folder)
            missing -= shards[number].tokens
        manifest.complete = True
        manifest.save(folder)
    return manifest


def _can_stay(folder: Path, shard: Shard, prompts: int, missing: int) -> bool:
    """Whether a shard is undamaged and, if it ended early, still the last one."""
    if shard.prompts < prompts and shard.tokens < missing:
        return False
    try:
        return hash_file(folder / shard.name) == shard.sha256
    except OSError:
        return False


def write_shard(folder: Path, number: int, found: Sequence[Answered]) -> Shard:
    """Write the answers to some prompts; returns the manifest's entry."""
    answers = [answer for one in found for answer in one.answers]
    name, content = f"shard-{number:05d}.jsonl.gz", pack(answers)
    write_file(folder / name, content)
    licences = Counter(answer.licence or "unknown" for answer in answers)
    return Shard(
        name=name,
        sha256=hashlib.sha256(content).hexdigest(),
        prompts=len(found),
        answers=len(answers),
        tokens=sum(one.tokens for one in found),
        skipped=sum(one.too_long for one in found),
        licences=dict(sorted(licences.items())),
    )
