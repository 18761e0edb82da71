"""What a comparison gives its contenders: conversations, turn by turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from paceline.bench.trial import Request
from paceline.options import Options
from paceline.prompts import PromptRecord
from paceline.session import Session

__all__ = ["Answers", "Conversation", "Record", "Text"]

Answers = Callable[[int], Sequence[int] | None]
"""Turn -> plain decoding's output; None if it failed."""


class Record(Protocol):
    """Identifies a conversation."""

    @property
    def id(self) -> str:
        """Unique within a suite."""
        ...

    @property
    def task(self) -> str:
        """Groups the results."""
        ...


class Conversation(Protocol):
    """A source of requests."""

    @property
    def suite(self) -> str:
        """The suite it belongs to."""
        ...

    @property
    def record(self) -> Record:
        """The record read from a file."""
        ...

    def turns(self, session: Session) -> int:
        """Number of requests, if all can be made."""
        ...

    def requests(self, session: Session, options: Options, answers: Answers) -> Iterator[Request]:
        """Yield one request per turn, made lazily. Ends early if an answer that it needs is
        missing."""
        ...


@dataclass(frozen=True)
class Text:
    """One prompt of a suite; plain decoding's answers stand between its turns."""

    suite: str
    record: PromptRecord

    def turns(self, session: Session) -> int:
        """1 if the turns form one text to continue."""
        return 1 if self._is_raw(session) else len(self.record.turns)

    def requests(self, session: Session, options: Options, answers: Answers) -> Iterator[Request]:
        """See `Conversation.requests`."""
        references = session.encode_references(self.record.references)
        if self._is_raw(session):
            yield Request(session.encode("\n\n".join(self.record.turns)), references, options)
            return
        messages: list[dict[str, str]] = []
        for turn, message in enumerate(self.record.turns):
            if turn > 0:
                plain = answers(turn - 1)
                if plain is None:
                    return
                answer = session.tokenizer.decode(plain, skip_special_tokens=True)
                messages.append({"role": "assistant", "content": answer})
            messages.append({"role": "user", "content": message})
            yield Request(session.encode(messages), references, options)

    def _is_raw(self, session: Session) -> bool:
        """Without a chat template, every text is continued as raw text."""
        return self.record.raw or not session.tokenizer.chat_template
