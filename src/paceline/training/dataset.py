"""The texts of a training: answers of the target and texts that it only reads, in three splits.

A text's split depends only on its prompt's id, whatever other texts there are; but the turns of a
conversation stay together, and so do answers to the same prompt under several ids. Training learns
from `train`, `validation` chooses the best step, and `test` is read once, at the end, for the
figures.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from transformers import PreTrainedTokenizerBase

from paceline.errors import UsageError
from paceline.prompts import PromptRecord
from paceline.training.data import TrainingData
from paceline.training.order import PromptFile, interleave
from paceline.training.settings import TrainerSettings

_SHORTEST = 4  # tokens: a place, its root, and a token to guess
_LONGEST_READ = 512  # tokens of a piece of a text that is only read
_MOST_READ = 20_000  # such pieces, as their states fill a disk

T = TypeVar("T")


@dataclass(frozen=True)
class Text:
    """A whole text.

    first: its first place; in an answer the last token of the prompt, else 0. begin: the first
    token whose state is kept. answer: whether the target wrote it. certain: whether every token of
    the answer is the target's likeliest one.
    """

    id: str
    tokens: tuple[int, ...]
    first: int
    begin: int
    answer: bool
    certain: bool = False

    @property
    def places(self) -> range:
        """Positions after which a token can be guessed: `first` and every later one but the last
        two, whose guesses would lie beyond the end."""
        return range(self.first, len(self.tokens) - 2)

    @cached_property
    def digest(self) -> str:
        """Hash of the tokens and of what is kept."""
        words = ",".join(map(str, self.tokens))
        content = f"{self.begin} {self.first} {self.answer} {words}".encode()
        return hashlib.blake2b(content, digest_size=12).hexdigest()


@dataclass(frozen=True)
class TextSource:
    """Where texts come from.

    answers: folders of the target's own. files: prompts that it only reads.

    Raises UsageError for answers that are given twice.
    """

    answers: Sequence[TrainingData]
    files: Sequence[PromptFile] = ()

    def __post_init__(self) -> None:
        known: set[str] = set()
        for data in self.answers:
            # Shards without answers are alike.
            shards = {shard.sha256 for shard in data.manifest.shards if shard.answers}
            if known & shards:
                raise UsageError(f"{data.folder} was given twice: name every folder of data once")
            known |= shards

    @property
    def licences(self) -> dict[str, int]:
        """Licence -> answers and prompts of files."""
        found: Counter[str] = Counter()
        for data in self.answers:
            found.update(data.manifest.licences)
        for file in self.files:
            found.update(record.licence or "unknown" for record in file.records)
        return dict(sorted(found.items()))

    def as_json(self) -> list[dict[str, Any]]:
        """What the texts are made of, as JSON values."""
        made: list[dict[str, Any]] = [
            {"run": data.manifest.run, "shards": [shard.sha256 for shard in data.manifest.shards]}
            for data in self.answers
        ]
        return [*made, *(file.as_json() for file in self.files)]


@dataclass(frozen=True)
class Dataset:
    """Three splits, and `reads`: pieces of texts that are only read, used for training alone.

    left_out: what of these texts is not there, a note for the user; "" if they are there whole.
    """

    train: list[Text] = field(default_factory=list)
    validation: list[Text] = field(default_factory=list)
    test: list[Text] = field(default_factory=list)
    reads: list[Text] = field(default_factory=list)
    left_out: str = ""

    @classmethod
    def of(
        cls,
        source: TextSource,
        settings: TrainerSettings,
        tokenizer: PreTrainedTokenizerBase | None,
        longest: int | None = None,
    ) -> Dataset:
        """Split the texts of a source.

        tokenizer: for texts that are only read; None leaves them out. longest: most tokens that the
        target can read; None for no limit.

        Raises UsageError for damaged shards, texts that the tokenizer's chat template rejects, or if
        a split would be empty.
        """
        found = cls()
        held_back = settings.validation + settings.test
        for share, text in _answers(source.answers, settings.context):
            if share < settings.test:
                found.test.append(text)
            elif share < held_back:
                found.validation.append(text)
            else:
                found.train.append(text)
        if tokenizer is not None and source.files:
            # A prompt with several ids is held back under all of them, a text in all its pieces.
            others = {_prompt_of(text.id) for text in (*found.validation, *found.test)}
            records = [
                record
                for record in interleave(source.files, settings.seed)
                if share_of(record.id) >= held_back and _prompt_of(record.id) not in others
            ]
            most = min(_LONGEST_READ, longest or _LONGEST_READ)
            found = replace(found, left_out=_read_into(found.reads, records, tokenizer, most))
        for name in ("train", "validation", "test"):
            if not getattr(found, name):
                raise UsageError(
                    f"no answer falls into the {name} split: make more training data, or increase "
                    "its share"
                )
        return found

    def __iter__(self) -> Iterator[Text]:
        """Yield all texts, answers first."""
        for split in (self.train, self.validation, self.test, self.reads):
            yield from split

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Texts and places by split."""
        return {
            name: {"texts": len(texts), "places": sum(len(text.places) for text in texts)}
            for name, texts in vars(self).items()
            if name != "left_out"
        }


def in_turns(items: Iterable[T], full: Callable[[Sequence[T], T], bool]) -> Iterator[list[T]]:
    """Group consecutive items. full: whether a group, which has some, ends before the next item."""
    group: list[T] = []
    for item in items:
        if group and full(group, item):
            yield group
            group = []
        group.append(item)
    if group:
        yield group


def share_of(name: str) -> float:
    """Hash a prompt's id to its place among all, 0 to 1; a first turn, "ID#1", has its prompt's."""
    mark = hashlib.blake2b(_prompt_of(name).encode(), digest_size=4).digest()
    return int.from_bytes(mark, "little") / 2**32


def _prompt_of(name: str) -> str:
    """The id of a prompt, given that of its first turn's answer."""
    return name.removesuffix("#1")


def _answers(folders: Iterable[TrainingData], context: int) -> Iterator[tuple[float, Text]]:
    """Yield the answers that have a place, after the share that decides their split."""
    shares: dict[tuple[int, ...], float] = {}
    for data in folders:
        certain = data.manifest.run.get("temperature") == 0
        before, share = "", 0.0
        for answer in data:
            prompt = tuple(answer.prompt)
            if not _is_next_turn(before, answer.id):
                share = shares.get(prompt, share_of(answer.id))
            shares.setdefault(prompt, share)
            before, first = answer.id, len(prompt) - 1
            tokens, begin = (*prompt, *answer.tokens), max(0, len(prompt) - context)
            text = Text(answer.id, tokens, first, begin, True, certain)
            if len(text.places) > 0:
                yield share, text


def _is_next_turn(before: str, name: str) -> bool:
    """Whether two answers, one after the other, have the ids "ID#N" and "ID#N+1". An id that ends
    like a later turn, but follows none, is a prompt's own."""
    prompt, mark, turn = before.rpartition("#")
    return mark != "" and turn.isdecimal() and name == f"{prompt}#{int(turn) + 1}"


def _read_into(
    reads: list[Text],
    records: Sequence[PromptRecord],
    tokenizer: PreTrainedTokenizerBase,
    most: int,
) -> str:
    """Add the pieces, each of at most `most` tokens, of texts that are only read, up to the limit;
    returns `Dataset.left_out`."""
    short = 0
    for number, record in enumerate(records):
        room, pieces = _MOST_READ - len(reads), _pieces(record, tokenizer, most)
        short += not pieces
        reads += pieces[:room]
        if len(pieces) > room:
            return (
                f"of {len(records)} texts to be read, {len(records) - number} are left out in "
                f"whole or in part: {_MOST_READ} pieces of {most} tokens are the most"
            )
    if not short:
        return ""
    return (
        f"of {len(records)} texts to be read, {short} are left out: with fewer than {_SHORTEST} "
        "tokens there is nothing to guess"
    )


def _pieces(record: PromptRecord, tokenizer: PreTrainedTokenizerBase, most: int) -> list[Text]:
    """Consecutive pieces of a text that is only read. A token that marks its beginning begins them
    all, as some models say nothing sensible without."""
    tokens = _encoded(record, tokenizer)
    mark = tokens[:1] if tokens[:1] == [tokenizer.bos_token_id] else []
    step = most - len(mark)
    pieces = ((*mark, *tokens[at : at + step]) for at in range(len(mark), len(tokens), step))
    return [Text(record.id, each, 0, 0, False) for each in pieces if len(each) >= _SHORTEST]


def _encoded(record: PromptRecord, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Token ids of all turns of a prompt as one message, in the chat template if there is one.
    Raises UsageError if that rejects it."""
    text = "\n\n".join(record.turns)
    if record.raw or not tokenizer.chat_template:
        return list(tokenizer(text).input_ids)
    try:
        text = tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False)
    except Exception as error:  # templates raise whatever they like
        raise UsageError(
            f"the model's chat template rejects the text {record.id} ({str(error)[:200]}): write "
            '"prompt" instead of "turns" for texts to be read without it'
        ) from error
    return list(tokenizer(text, add_special_tokens=False).input_ids)
