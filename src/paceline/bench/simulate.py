"""Trace-driven simulation: force the recorded outputs of stronger models (Yang et al. 2023, arXiv
2304.04487, section 3.2 and Algorithm 2).

Every pass really runs on the target, with the method's drafts, and every draw is really made; but
the recorded token replaces the drawn one. So acceptance is that of the recorded text and cost that
of the target, whatever the target itself would have written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from paceline.bench.trial import Answers, Request
from paceline.options import Options
from paceline.session import Session

ASSISTANT = "assistant"


@dataclass(frozen=True)
class TraceRecord:
    """A recorded conversation.

    messages: role and content, in order; each one of the assistant is an output, forced given all
    messages before it.
    prompt: an id that recordings of the same prompt share.
    references: texts the outputs may resemble.
    """

    id: str
    messages: tuple[tuple[str, str], ...]
    prompt: str
    task: str = ""
    references: tuple[str, ...] = ()

    @property
    def outputs(self) -> list[str]:
        """The recorded model's messages, in order."""
        return [content for role, content in self.messages if role == ASSISTANT]


@dataclass(frozen=True)
class Recording:
    """A recorded conversation to run; its suite is the file it comes from."""

    suite: str
    record: TraceRecord

    @property
    def group(self) -> str:
        """See `Entry`."""
        return self.record.prompt

    def turns(self, session: Session) -> int:
        """One per output."""
        return len(self.record.outputs)

    def requests(self, session: Session, options: Options, answers: Answers) -> Iterator[Request]:
        """Yield one request per output, made lazily; recorded outputs stand between turns."""
        references = session.encode_references(self.record.references)
        for place, (role, content) in enumerate(self.record.messages):
            if role == ASSISTANT:
                (recorded,) = session.encode_references([content])
                length = min(len(recorded), options.max_new_tokens)
                yield Request(
                    _prompt(session, self.record.messages[:place]),
                    references,
                    replace(options, max_new_tokens=length, ignore_eos=True),
                    recorded[:length],
                )


def _prompt(session: Session, messages: Sequence[tuple[str, str]]) -> list[int]:
    """Apply the model's chat template; without one, join the messages into one text to continue."""
    if session.tokenizer.chat_template:
        return session.encode([{"role": role, "content": content} for role, content in messages])
    return session.encode("\n\n".join(content for _, content in messages) + "\n\n")
