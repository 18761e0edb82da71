"""Trace-driven simulation: recorded outputs of stronger models, written again by force (Yang et
al. 2023, arXiv 2304.04487, section 3.2 and Algorithm 2).

Every pass really runs on the target, with the drafts of the method after it, and every draw is
really made; but the token that counts is the recorded one. So the acceptance is that of the
recorded text and the cost that of the target, whatever the target itself would have said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from paceline.bench.texts import Answers
from paceline.bench.trial import Request
from paceline.options import Options
from paceline.sampling import Draw, Sampler
from paceline.session import Session

__all__ = ["Forced", "ForcedRequest", "Recording", "TraceRecord"]

ASSISTANT = "assistant"


@dataclass(frozen=True)
class Forced(Sampler):
    """A sampler that does its work and then says what was recorded.

    recorded: stands after the prompt; after its end the model speaks for itself.
    """

    recorded: Sequence[int] = ()

    def over(self, logits: torch.Tensor, positions: Sequence[int] | None = None) -> Draw:
        """See `Sampler.over`."""
        own = super().over(logits, positions)

        def draw(row: int, context: Sequence[int]) -> int:
            token = own(row, context)
            place = len(context) - self.prompt_tokens
            return self.recorded[place] if place < len(self.recorded) else token

        return draw


@dataclass(frozen=True)
class ForcedRequest(Request):
    """A text that is there already, to be generated once more.

    recorded: its tokens.
    """

    recorded: Sequence[int] = ()

    def sampler(self) -> Sampler:
        """See `Request.sampler`."""
        return Forced(**vars(self.options.sampler(len(self.ids))), recorded=self.recorded)


@dataclass(frozen=True)
class TraceRecord:
    """A recorded conversation.

    messages: role and content, from the first on; every one of the assistant is an output, to be
    forced given all before it.
    prompt: what recordings of one prompt have in common.
    references: texts the outputs may resemble.
    """

    id: str
    messages: tuple[tuple[str, str], ...]
    prompt: str
    task: str = ""
    references: tuple[str, ...] = ()

    @property
    def outputs(self) -> list[str]:
        """What the recorded model said, in order."""
        return [content for role, content in self.messages if role == ASSISTANT]


@dataclass(frozen=True)
class Recording:
    """A recorded conversation as something to run; its suite is the file it comes from."""

    suite: str
    record: TraceRecord

    def turns(self, session: Session) -> int:
        """One per output."""
        return len(self.record.outputs)

    def requests(self, session: Session, options: Options, answers: Answers) -> Iterator[Request]:
        """See `Conversation.requests`. Recorded outputs stand between the turns, too."""
        references = session.encode_references(self.record.references)
        for place, (role, content) in enumerate(self.record.messages):
            if role == ASSISTANT:
                (recorded,) = session.encode_references([content])
                length = min(len(recorded), options.max_new_tokens)
                yield ForcedRequest(
                    _prompt(session, self.record.messages[:place]),
                    references,
                    replace(options, max_new_tokens=length, ignore_eos=True),
                    recorded[:length],
                )


def _prompt(session: Session, messages: Sequence[tuple[str, str]]) -> list[int]:
    """By the model's chat template; without one the messages are one text to continue."""
    if session.tokenizer.chat_template:
        return session.encode([{"role": role, "content": content} for role, content in messages])
    return session.encode("\n\n".join(content for _, content in messages) + "\n\n")
