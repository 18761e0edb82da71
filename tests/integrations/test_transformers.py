"""paceline inside `model.generate`, and `accelerate` around a model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.integrations.processors import Alternating
from transformers import (
    DynamicCache,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LogitsProcessorList,
    MaxTimeCriteria,
    PreTrainedModel,
    StoppingCriteria,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.generation.streamers import BaseStreamer
from transformers.generation.utils import GenerateDecoderOnlyOutput

import paceline
from paceline.errors import ModelError, UsageError
from paceline.integrations import Pace, accelerate, known_model
from paceline.integrations.requests import check_request
from paceline.planning.cost_curve import CostCurve, CostPoint

METHODS = ["plain", "anpd", "anpd:branches=2", "llma", "pld"]
PROMPT = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6]


@pytest.fixture(autouse=True)
def curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models without a name have no stored curve, and measuring one takes longer than most tests."""
    known = CostCurve((CostPoint(1, 0, 1.0), CostPoint(64, 0, 1.5)))
    monkeypatch.setattr(known_model, "known_curve", lambda *_: known)


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=48,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


def both(model: PreTrainedModel, method: str, **inputs: Any) -> tuple[Any, Any]:
    plain = model.generate(**inputs)
    return plain, model.generate(**inputs, custom_generate=Pace(method))


def padded_batch() -> dict[str, torch.Tensor]:
    ids = torch.tensor([PROMPT, [0, 0, 0, *PROMPT[3:]], [0] * 9 + [7]])
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    mask[2, :9] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("method", METHODS)
def test_greedy_output_is_that_of_generate(model: PreTrainedModel, method: str) -> None:
    plain, fast = both(model, method, input_ids=torch.tensor([PROMPT]), max_new_tokens=40)
    assert torch.equal(plain, fast)


@pytest.mark.parametrize(
    ("method", "eos"),
    [("anpd:branches=2", None), ("anpd", 11), *((method, [11, 30]) for method in METHODS)],
)
def test_a_left_padded_batch_equals_generate_with_its_padding(
    model: PreTrainedModel, method: str, eos: int | list[int] | None
) -> None:
    plain, fast = both(model, method, **padded_batch(), max_new_tokens=30, eos_token_id=eos)
    assert torch.equal(plain, fast)


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.4},
        {"no_repeat_ngram_size": 2},
        {"min_new_tokens": 10, "eos_token_id": 11},
        {"suppress_tokens": [11, 12]},
        {"begin_suppress_tokens": [20, 21, 22]},
        {"bad_words_ids": [[9, 3], [14]]},
        {"forced_eos_token_id": 3, "eos_token_id": 3},
        {"sequence_bias": [[[5], 3.0], [[7, 8], -4.0]]},
        {"prefix_allowed_tokens_fn": lambda row, ids: [row + 1, row + 2, int(ids[-1]) % 40]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_every_processor_of_generate_is_honoured_in_a_batch(
    model: PreTrainedModel, options: dict[str, Any]
) -> None:
    """Several of them look at the padded length, the padding or the number of the row."""
    plain, fast = both(model, "anpd", **padded_batch(), max_new_tokens=16, **options)
    assert torch.equal(plain, fast)


def test_a_stateful_processor_is_called_once_per_position_in_order(
    model: PreTrainedModel,
) -> None:
    outputs = []
    for extra in ({}, {"custom_generate": Pace("anpd:branches=2")}):
        processor = Alternating()
        outputs.append(
            model.generate(
                torch.tensor([PROMPT]),
                max_new_tokens=30,
                logits_processor=LogitsProcessorList([processor]),
                **extra,
            )
        )
        assert processor.calls == 30
    assert torch.equal(*outputs)


class AfterToken(StoppingCriteria):
    """Stops each row after a token of its own."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return input_ids[:, -1] % 7 == 3


def test_stopping_criteria_are_honoured_per_row(model: PreTrainedModel) -> None:
    # transformers pads rows after their end only where some end-of-sequence token is set.
    plain, fast = both(
        model,
        "anpd",
        **padded_batch(),
        max_new_tokens=40,
        eos_token_id=2,
        stopping_criteria=[AfterToken()],
    )
    assert torch.equal(plain, fast)


def test_a_time_limit_ends_the_generation(model: PreTrainedModel) -> None:
    output = model.generate(
        torch.tensor([PROMPT]),
        max_new_tokens=100,
        stopping_criteria=[MaxTimeCriteria(max_time=0.0)],
        custom_generate=Pace("anpd"),
    )
    assert output.shape[1] == len(PROMPT) + 1


@pytest.mark.parametrize("method", METHODS[1:])
def test_sampling_is_that_of_plain_decoding_with_the_seed(
    model: PreTrainedModel, method: str
) -> None:
    request = {**padded_batch(), "do_sample": True, "temperature": 0.8, "top_k": 20}
    plain, fast = (
        model.generate(**request, max_new_tokens=30, custom_generate=Pace(name, seed=3))
        for name in ("plain", method)
    )
    assert torch.equal(plain, fast)


def test_without_a_seed_the_global_generator_decides(model: PreTrainedModel) -> None:
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(
            model.generate(
                torch.tensor([PROMPT]),
                do_sample=True,
                max_new_tokens=20,
                custom_generate=Pace("anpd"),
            )
        )
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_returned_sequences_of_one_prompt_differ(model: PreTrainedModel) -> None:
    output = model.generate(
        torch.tensor([PROMPT]),
        do_sample=True,
        num_return_sequences=3,
        max_new_tokens=20,
        custom_generate=Pace("anpd", seed=0),
    )
    assert len({tuple(row) for row in output.tolist()}) == 3


class Recorder(BaseStreamer):
    def __init__(self) -> None:
        self.heard: list[int] = []
        self.ended = 0

    def put(self, value: torch.Tensor) -> None:
        self.heard += value.flatten().tolist()

    def end(self) -> None:
        self.ended += 1


def test_streamers_hear_what_they_hear_from_generate(model: PreTrainedModel) -> None:
    plain, held, passed = Recorder(), Recorder(), Recorder()
    request = {"inputs": torch.tensor([PROMPT]), "max_new_tokens": 20}
    model.generate(**request, streamer=plain)
    model.generate(**request, custom_generate=Pace("anpd", streamer=held))
    accelerate(model, "anpd").generate(**request, streamer=passed)
    assert held.heard == passed.heard == plain.heard
    assert held.ended == passed.ended == plain.ended == 1


def test_accelerate_takes_and_returns_what_generate_does(model: PreTrainedModel) -> None:
    fast = paceline.accelerate(model, "anpd", n=4, k=6)
    assert fast.model is model.model and fast.lm_head is model.lm_head
    batch = padded_batch()
    assert torch.equal(
        fast.generate(**batch, max_new_tokens=20), model.generate(**batch, max_new_tokens=20)
    )
    assert torch.equal(
        fast.generate(batch["input_ids"][:1], max_length=25),
        model.generate(batch["input_ids"][:1], max_length=25),
    )
    result = fast.generate(**batch, max_new_tokens=5, return_dict_in_generate=True)
    assert isinstance(result, GenerateDecoderOnlyOutput)
    assert result.sequences.shape == (3, len(PROMPT) + 5)
    assert fast.config is model.config
    assert [stats.tokens for stats in fast.stats] == [5, 5, 5]


def test_references_reach_the_drafter(model: PreTrainedModel) -> None:
    request = {"inputs": torch.tensor([PROMPT]), "max_new_tokens": 40}
    answer = model.generate(**request)[0, len(PROMPT) :].tolist()
    pace = Pace("llma:tie=first", budget=16)
    output = model.generate(**request, custom_generate=pace, references=[torch.tensor(answer)])
    assert output[0, len(PROMPT) :].tolist() == answer
    assert pace.stats[0].rounds < 20
    for wrong, said in ((["a text"], "is token ids: encode it"), ([1, 2], "list")):
        with pytest.raises(UsageError, match=said):
            model.generate(**request, custom_generate=pace, references=wrong)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_beams": 4}, "beam search"),
        ({"output_scores": True, "return_dict_in_generate": True}, "output_scores"),
        ({"attention_mask": torch.tensor([[1] * 8 + [0] * 2])}, "pad on the left"),
        ({"inputs_embeds": torch.zeros(1, 4, 32), "inputs": None}, "inputs_embeds"),
        ({"attention_mask": torch.tensor([[0] * 4 + [1] * 10])}, r"has the shape \(1, 14\)"),
        ({"attention_mask": torch.tensor([[0] * 2 + [1] * 4])}, r"has the shape \(1, 6\)"),
        ({"attention_mask": torch.tensor([[0] * 3 + [1] * 7] * 2)}, r"has the shape \(2, 10\)"),
        ({"attention_mask": torch.zeros(1, 10)}, "prompt 0 of the batch is empty"),
        ({"inputs": torch.zeros(0, 10, dtype=torch.long)}, "holds no prompt"),
        ({"inputs": torch.ones(1, 10)}, "torch.float32 with the shape"),
        ({"inputs": torch.ones(1, 1, 10, dtype=torch.long)}, r"the shape \(1, 1, 10\): pass"),
    ],
    ids=[
        "beams",
        "scores",
        "right padding",
        "embeddings",
        "long mask",
        "short mask",
        "mask of two",
        "only padding",
        "no row",
        "fractions",
        "rows of rows",
    ],
)
def test_what_cannot_be_served_is_refused_at_once(
    model: PreTrainedModel, options: dict[str, Any], words: str
) -> None:
    passes: list[Any] = []
    handle = model.register_forward_pre_hook(lambda *args: passes.append(args))
    request = {"inputs": torch.tensor([PROMPT]), "max_new_tokens": 4, **options}
    with pytest.raises(UsageError, match=words):
        model.generate(**request, custom_generate=Pace("anpd"))
    handle.remove()
    assert not passes


@pytest.mark.parametrize("filled", [False, True])
def test_a_cache_of_the_callers_is_refused(model: PreTrainedModel, filled: bool) -> None:
    """It would not be filled: whoever goes on from it would lose the text before."""
    cache = DynamicCache()
    if filled:
        cache = model(torch.tensor([PROMPT[:4]]), use_cache=True).past_key_values
    with pytest.raises(UsageError, match="past_key_values are not supported"):
        model.generate(
            torch.tensor([PROMPT]),
            past_key_values=cache,
            max_new_tokens=4,
            custom_generate=Pace("anpd"),
        )


def test_a_quantised_cache_is_refused(model: PreTrainedModel) -> None:
    with pytest.raises(UsageError, match="would write another text: leave it out"):
        check_request(model, GenerationConfig(cache_implementation="quantized"), {})


def test_a_streamer_refuses_a_batch(model: PreTrainedModel) -> None:
    with pytest.raises(UsageError, match="shows only one text"):
        model.generate(
            **padded_batch(), max_new_tokens=4, custom_generate=Pace("anpd", streamer=Recorder())
        )


def test_an_encoder_decoder_is_refused_at_construction() -> None:
    t5 = T5ForConditionalGeneration(
        T5Config(vocab_size=32, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    ).eval()
    with pytest.raises(ModelError, match="encoder-decoder"):
        accelerate(t5, "anpd")


def test_an_unknown_method_or_setting_is_refused_at_construction(model: PreTrainedModel) -> None:
    with pytest.raises(UsageError, match="did you mean anpd"):
        accelerate(model, "anpdd")
    with pytest.raises(UsageError, match="no setting 'm'"):
        accelerate(model, "anpd", m=3)
