"""What a comparison asks its contenders: conversations, turn by turn."""

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
"""Turn -> what plain decoding wrote there; None where it did not come through."""


class Record(Protocol):
    """What names a conversation."""

    @property
    def id(self) -> str:
        """Differs within a suite."""
        ...

    @property
    def task(self) -> str:
        """Results are shown by task."""
        ...


class Conversation(Protocol):
    """Where requests come from."""

    @property
    def suite(self) -> str:
        """What it belongs to."""
        ...

    @property
    def record(self) -> Record:
        """What was read from a file."""
        ...

    def turns(self, session: Session) -> int:
        """How many requests there are, if all can be made."""
        ...

    def requests(self, session: Session, options: Options, answers: Answers) -> Iterator[Request]:
        """One request per turn, made when it is asked for. Ends early where an answer that it
        needs is not there."""
        ...


@dataclass(frozen=True)
class Text:
    """One prompt of a suite, to be answered; plain decoding's own answers stand between turns."""

    suite: str
    record: PromptRecord

    def turns(self, session: Session) -> int:
        """One, where the turns are one text to continue."""
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
        """Without a chat template every text is one to continue."""
        return self.record.raw or not session.tokenizer.chat_template
