"""Log-probabilities of what was said."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.errors import UsageError
from paceline.logprobs import path_logprobs
from paceline.options import Options
from paceline.records import Path
from paceline.targets.toy import ToyTarget
from paceline.testing.reference import Reference
from tests.tiny import byte_tokenizer, toy_session

WARPED = {
    "temperature": 0.8,
    "top_k": 9,
    "repetition_penalty": 1.3,
    "frequency_penalty": 0.5,
    "logit_bias": {70: 4.0},
}


def rows_of(tokens: list[int], prompt: str = "once") -> torch.Tensor:
    """Raw logits [tokens, vocabulary] of each place, each from a fresh pass."""
    tokenizer = byte_tokenizer()
    target = ToyTarget(vocab_size=len(tokenizer), order=2, sharpness=3.0, max_context=4096)
    reference, text = Reference(target), list(tokenizer(prompt).input_ids)
    return torch.stack([reference.row([*text, *tokens[:place]]) for place in range(len(tokens))])


@pytest.mark.parametrize("options", [{}, WARPED], ids=["greedy", "warped"])
@pytest.mark.parametrize("method", ["plain", "anpd", "lookahead"])
def test_they_are_the_raw_models_of_each_token(method: str, options: dict[str, Any]) -> None:
    done = toy_session(method, budget=64).generate("once", max_new_tokens=40, logprobs=3, **options)
    logs = rows_of(done.tokens).double().log_softmax(-1)
    assert [one.token for one in done.logprobs] == done.tokens
    for place, one in enumerate(done.logprobs):
        assert one.logprob == pytest.approx(float(logs[place, one.token]), abs=1e-4)
        best = logs[place].topk(3)
        assert [token for token, _ in one.top] == best.indices.tolist()
        assert [log for _, log in one.top] == pytest.approx(best.values.tolist(), abs=1e-4)
    plain = toy_session("plain").generate("once", max_new_tokens=40, logprobs=3, **options)
    assert plain.logprobs == done.logprobs


def test_none_are_told_without_being_asked_for_and_alternatives_only_as_many() -> None:
    assert toy_session().generate("once", max_new_tokens=5).logprobs == ()
    for count in (0, 1, 20):
        done = toy_session().generate("once", max_new_tokens=5, logprobs=count)
        assert [len(one.top) for one in done.logprobs] == [count] * 5


@pytest.mark.parametrize("stop", [(), "e"])
def test_chunks_tell_those_of_the_completion_in_order(stop: Any) -> None:
    options = {"max_new_tokens": 60, "temperature": 1.0, "seed": 5, "stop": stop, "logprobs": 1}
    stream = toy_session("anpd", budget=64).stream("once upon", **options)
    chunks = list(stream)
    told = tuple(one for chunk in chunks for one in chunk.logprobs)
    whole = stream.completion.logprobs
    assert told == whole[: len(told)]
    # What is in no chunk is no part of the text either.
    tail = [one.token for one in whole[len(told) :]]
    text = stream.completion.text
    assert toy_session().tokenizer.decode([one.token for one in told]).startswith(text)
    assert len(tail) <= 2
    assert len(told) > 3


def test_a_batch_tells_every_text_its_own() -> None:
    prompts = ["once", "upon", "a time"]
    together = toy_session("anpd").generate_batch(prompts, max_new_tokens=20, logprobs=2)
    for prompt, done in zip(prompts, together, strict=True):
        alone = toy_session("plain").generate(prompt, max_new_tokens=20, logprobs=2)
        assert done.logprobs == alone.logprobs


def test_of_equal_scores_the_first_tokens_are_told() -> None:
    (one,) = path_logprobs(torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0]]), Path((), (4,)), 2)
    assert [token for token, _ in one.top] == [1, 2]
    assert one.token == 4


def test_half_precision_is_read_in_single_precision() -> None:
    row = torch.randn(1, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    (one,) = path_logprobs(row, Path((), (7,)), 0)
    assert one.logprob == pytest.approx(float(row[0].double().log_softmax(-1)[7]), abs=1e-5)


@pytest.mark.parametrize("count", [-1, 21])
def test_a_count_out_of_range_is_refused(count: int) -> None:
    with pytest.raises(UsageError, match=r"logprobs must be in \[0, 20\]"):
        Options(logprobs=count)
