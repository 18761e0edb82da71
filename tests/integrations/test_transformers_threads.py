"""Threads that generate on one model at the same time."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread
from time import sleep
from typing import Any

import pytest
import torch
from tests.tiny_models import new_model
from transformers import PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from paceline.integrations import accelerate

PROMPT = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6]
OTHER = [9, 10, 11, 12, 9, 10]
PATIENCE = 60.0


@pytest.fixture
def model() -> PreTrainedModel:
    return new_model("llama", pad_token_id=0)


def answer(model: Any, prompt: list[int], **options: Any) -> list[int]:
    found: list[int] = model.generate(torch.tensor([prompt]), **options)[0].tolist()
    return found


class Beside:
    """A call in a thread of its own, and what came of it."""

    def __init__(self, call: Callable[[], list[int]]) -> None:
        self._call = call
        self._result: list[int] | BaseException | None = None
        self._thread = Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:
            self._result = error

    def result(self) -> list[int]:
        self._thread.join(PATIENCE)
        assert isinstance(self._result, list), self._result
        return self._result


class Pausing(BaseStreamer):
    """Waits for `go` after the first token."""

    def __init__(self) -> None:
        self.begun, self.go = Event(), Event()
        self._puts = 0

    def put(self, value: torch.Tensor) -> None:
        self._puts += 1
        if self._puts == 2:
            self.begun.set()
            assert self.go.wait(PATIENCE)

    def end(self) -> None:
        pass


def test_a_call_that_began_beside_a_batch_may_end_after_it(model: PreTrainedModel) -> None:
    """A batch attends in its own way, in the same model."""
    expected, streamer = answer(model, OTHER, max_new_tokens=40), Pausing()
    batch, single = (accelerate(model, "anpd", budget=8) for _ in range(2))
    calls: list[Beside] = []

    def begin(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if not calls:
            request = {"max_new_tokens": 40, "streamer": streamer}
            calls.append(Beside(lambda: answer(single, OTHER, **request)))
            assert streamer.begun.wait(PATIENCE)
        return scores

    rows = torch.tensor([PROMPT, PROMPT[::-1]])
    together = batch.generate(rows, max_new_tokens=8, logits_processor=[begin])
    streamer.go.set()
    assert calls[0].result() == expected
    assert torch.equal(together, model.generate(rows, max_new_tokens=8))
    assert model.config._attn_implementation == "sdpa"


def test_calls_of_threads_take_turns(model: PreTrainedModel) -> None:
    """They share a planner and draft models."""
    fast = accelerate(model, "anpd", budget=8)
    inside, seen = [], set()

    def watch(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        inside.append(None)
        sleep(0.01)
        seen.add(len(inside))
        inside.pop()
        return scores

    request = {"max_new_tokens": 10, "logits_processor": [watch]}
    calls = [Beside(lambda: answer(fast, PROMPT, **request)) for _ in range(3)]
    expected = answer(model, PROMPT, max_new_tokens=10)
    assert all(call.result() == expected for call in calls)
    assert seen == {1}


@pytest.mark.parametrize("method", ["auto", "auto:-speculative", "speculative", "ouroboros"])
def test_threads_share_a_draft_model(model: PreTrainedModel, method: str) -> None:
    settings = {} if method.startswith("auto") else {"draft": new_model("llama")}
    fast = accelerate(model, method, budget=8, **settings)
    prompts = [PROMPT, OTHER, PROMPT[::-1]]
    calls = [
        Beside(lambda prompt=prompt: answer(fast, prompt, max_new_tokens=24)) for prompt in prompts
    ]
    for prompt, call in zip(prompts, calls):
        assert call.result() == answer(model, prompt, max_new_tokens=24)


def test_a_processor_may_generate_with_the_same_model(model: PreTrainedModel) -> None:
    fast = accelerate(model, "speculative", draft=new_model("llama"), budget=8)
    inner = []

    def ask(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        inner.append(answer(fast, OTHER, max_new_tokens=6))
        return scores

    told = answer(fast, PROMPT, max_new_tokens=6, logits_processor=[ask])
    assert told == answer(model, PROMPT, max_new_tokens=6)
    assert inner == [answer(model, OTHER, max_new_tokens=6)] * 6
