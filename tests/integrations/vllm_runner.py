"""What vLLM's model runner does around a proposer, without vLLM: rows, moves, checks of drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from paceline.integrations.vllm import Proposer
from paceline.prefix import common_prefix

LONGEST = 512


def vllm_config(tokens: int = 5, additional: Any = None, longest: int = LONGEST) -> SimpleNamespace:
    """As much of vLLM's as a proposer looks at."""
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=tokens),
        model_config=SimpleNamespace(max_model_len=longest),
        additional_config={"paceline": additional} if additional is not None else {},
    )


@dataclass(eq=False)
class Request:
    """stream: what plain decoding says after the prompt. said: how much of it there is.

    drafts: by length of the text that they follow; those at lengths `lost` were never checked.
    """

    prompt: Sequence[int]
    stream: Sequence[int]
    said: int = 0
    draft: list[int] = field(default_factory=list)
    drafts: dict[int, tuple[int, ...]] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)

    @property
    def text(self) -> list[int]:
        return [*self.prompt, *self.stream[: self.said]]


class Runner:
    """The batch of one engine. Rows hold what was there before them, as vLLM's do."""

    def __init__(self, proposer: Proposer, rows: int = 8) -> None:
        self.proposer = proposer
        self.batch: list[Request] = []
        self._reading: list[Request] = []
        self._tokens = np.full((rows, LONGEST), 7, dtype=np.int32)
        self._lengths = np.zeros(rows, dtype=np.int32)

    def join(self, request: Request, reading: bool = False) -> None:
        """A request comes, or comes back. reading: its prompt takes one more step."""
        request.draft = []
        request.lost.add(len(request.text))
        self.batch.append(request)
        if reading:
            self._reading.append(request)

    def leave(self, request: Request) -> None:
        """It has ended or is put off: the last row moves to its place."""
        place = self.batch.index(request)
        self.batch[place] = self.batch[-1]
        self.batch.pop()

    def step(self) -> None:
        """One pass of the model over all rows, and the drafts for the next one."""
        gained: list[list[int]] = []
        for row, request in enumerate(self.batch):
            coming = request.stream[request.said :]
            count = 0 if request in self._reading else 1 + common_prefix(request.draft, coming)
            request.said += count
            text = request.text
            self._tokens[row, : len(text)] = text
            self._lengths[row] = len(text)
            gained.append(list(coming[:count]))
        self._reading = []
        drafts = self.proposer.propose(gained, self._lengths, self._tokens, slot_mappings=None)
        assert len(drafts) == len(self.batch)
        for request, draft, new in zip(self.batch, drafts, gained):
            request.draft = draft
            if new:
                request.drafts[len(request.text)] = tuple(draft)
            else:
                assert draft == []
