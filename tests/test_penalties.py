"""Biases and the penalties of OpenAI's API, against a reference of a few lines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import LogitsProcessorList, RepetitionPenaltyLogitsProcessor
from transformers.generation import SequenceBiasLogitsProcessor

from paceline.errors import UsageError
from paceline.options import Options
from paceline.sampling import Sampler, gumbel
from paceline.targets.toy import ToyTarget
from paceline.testing.reference import Reference
from tests.helpers import generate
from tests.prompt_parts import toy_drafter
from tests.tiny import byte_tokenizer, toy_session

PROMPT = [3, 1, 4, 1, 5, 9]
CASES: dict[str, dict[str, Any]] = {
    "presence": {"presence_penalty": 1.1},
    "frequency": {"frequency_penalty": 0.4},
    "rewards": {"presence_penalty": -0.6, "frequency_penalty": -0.2},
    "bias": {"logit_bias": ((3, 2.5), (7, -100.0))},
    "all": {"presence_penalty": 0.5, "frequency_penalty": 0.3, "logit_bias": ((2, 1.5),)},
}


def straight(count: int, temperature: float, settings: dict[str, Any]) -> list[int]:
    """Token by token with numpy: mu[j] - count[j] frequency - (count[j] > 0) presence."""
    reference, text = Reference(ToyTarget()), list(PROMPT)
    for _ in range(count):
        scores = reference.row(text).double().numpy().copy()
        for token, bias in settings.get("logit_bias", ()):
            scores[token] += bias
        for token in range(len(scores)):
            times = text[len(PROMPT) :].count(token)
            scores[token] -= times * settings.get("frequency_penalty", 0.0)
            scores[token] -= (times > 0) * settings.get("presence_penalty", 0.0)
        if temperature:
            scores = scores / temperature + gumbel(5, len(text), len(scores))
        text.append(int(np.argmax(scores)))
    return text[len(PROMPT) :]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("method", ["plain", "anpd", "ppd", "speculative:draft=twin,length=3"])
@pytest.mark.parametrize("case", CASES)
def test_texts_are_those_of_the_straight_reference(
    case: str, method: str, temperature: float
) -> None:
    sampler = Sampler(seed=5, temperature=temperature, prompt_tokens=len(PROMPT), **CASES[case])
    output, _, _ = generate(ToyTarget(), toy_drafter(method), PROMPT, 40, sampler=sampler)
    assert output == straight(40, temperature, CASES[case])


def test_each_setting_changes_the_text() -> None:
    free = straight(40, 0.0, {})
    assert all(straight(40, 0.0, settings) != free for settings in CASES.values())


def test_tokens_of_the_prompt_are_not_penalised_and_those_of_the_output_are() -> None:
    row = torch.tensor([5.0, 4.9, 0.0])
    sampler = Sampler(presence_penalty=0.5, prompt_tokens=2)
    assert sampler.draw(row, [0, 0]) == 0
    assert sampler.draw(row, [0, 0, 0]) == 1


def test_a_session_counts_from_the_end_of_the_prompt() -> None:
    options: dict[str, Any] = {"frequency_penalty": 1.5, "max_new_tokens": 30}
    free = toy_session("plain").generate("once upon", max_new_tokens=30)
    for method in ("plain", "anpd"):
        session = toy_session(method, budget=64)
        done = session.generate("once upon", **options)
        prompt = session.encode("once upon")
        sampler = Options(**options).sampler(len(prompt))
        own = Reference(session.target).continued(prompt, 30, sampler)
        assert done.tokens == own != free.tokens


def test_the_order_is_bias_then_repetition_then_the_rest() -> None:
    """As transformers has its processors in: `sequence_bias` before the repetition penalty."""
    row, context = torch.randn(40, generator=torch.Generator().manual_seed(1)), [4, 7, 7, 9]
    order = LogitsProcessorList(
        [
            SequenceBiasLogitsProcessor(sequence_bias=[[[7], 3.0], [[9], -2.0]]),
            RepetitionPenaltyLogitsProcessor(1.7),
        ]
    )
    theirs = order(torch.tensor([context]), row[None].clone())[0]
    theirs[[7, 9]] -= torch.tensor([0.25 * 2 + 0.5, 0.25 + 0.5])
    seen: list[torch.Tensor] = []

    def listen(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(scores[0].clone())
        return scores

    Sampler(
        repetition_penalty=1.7,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        logit_bias=((7, 3.0), (9, -2.0)),
        prompt_tokens=1,
        processors=(listen,),
    ).draw(row, context)
    torch.testing.assert_close(seen[0], theirs)


def test_a_bias_of_a_token_that_a_draft_model_does_not_know_is_nothing_to_it() -> None:
    row = torch.tensor([1.0, 0.0])
    beyond = ((len(row), 9.0), (77, 9.0))
    assert Sampler(logit_bias=((1, 3.0), *beyond)).draw(row, [0]) == 1
    sampler = Sampler(presence_penalty=2.0, frequency_penalty=2.0)
    assert sampler.draw(row, [0, 99, 99]) == 1


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty"),
        ({"logit_bias": {3: 100.5}}, "logit_bias"),
        ({"logit_bias": {3: float("nan")}}, "logit_bias"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
    ],
)
def test_values_out_of_range_are_refused_by_name(options: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        Options(**options)


def test_a_bias_beyond_the_vocabulary_is_refused() -> None:
    beyond = len(byte_tokenizer())
    with pytest.raises(UsageError, match=f"logit_bias names token {beyond}"):
        toy_session().generate("once", logit_bias={beyond: 1.0})
