"""Calls of one `Pace` or one accelerated model: beside each other, for other models, as copies."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from accelerate import dispatch_model
from tests.tiny import byte_tokenizer
from tests.tiny_models import new_model, tiny_model
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from paceline.errors import ModelError, UsageError
from paceline.integrations import Accelerated, Pace, accelerate

PROMPT = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6]
OTHER = [9, 10, 11, 12, 9, 10]


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return tiny_model("llama")


class Recorder(BaseStreamer):
    """Hears a text, and calls `then` after each of its parts."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.heard: list[int] = []
        self.then = then

    def put(self, value: torch.Tensor) -> None:
        self.heard += value.flatten().tolist()
        self.then()

    def end(self) -> None:
        pass


def answer(model: Any, prompt: list[int], **options: Any) -> list[int]:
    found: list[int] = model.generate(torch.tensor([prompt]), **options)[0].tolist()
    return found


@pytest.mark.parametrize("method", ["anpd:persist=true", "suffix", "auto"])
def test_a_call_during_another_has_its_own_streamer_and_drafter(
    model: PreTrainedModel, method: str
) -> None:
    """Which is what threads do, in an order that is always the same."""
    fast, inner = accelerate(model, method, budget=8), []

    def call() -> None:
        inner.append(Recorder())
        told = answer(fast, OTHER, max_new_tokens=12, streamer=inner[-1])
        assert told == inner[-1].heard

    outer = Recorder(call)
    told = answer(fast, PROMPT, max_new_tokens=20, streamer=outer)
    assert told == outer.heard == answer(model, PROMPT, max_new_tokens=20)
    assert {tuple(each.heard) for each in inner} == {tuple(answer(model, OTHER, max_new_tokens=12))}
    assert [stats.tokens for stats in fast.stats] == [20]
    # No streamer stays behind, which would refuse several texts.
    assert fast.generate(torch.tensor([OTHER, OTHER]), max_new_tokens=2).shape == (2, 8)


def test_a_drafter_is_kept_for_the_next_call_even_after_an_error(model: PreTrainedModel) -> None:
    pace = Pace("anpd:persist=true", budget=8)

    def fail() -> None:
        raise OSError("closed")

    request = {"max_new_tokens": 30, "custom_generate": pace}
    first = answer(model, PROMPT, **request)
    before = pace.stats[0].rounds
    pace.streamer = Recorder(fail)
    with pytest.raises(OSError, match="closed"):
        answer(model, PROMPT, **request)
    pace.streamer = None
    assert answer(model, PROMPT, **request) == first
    assert pace.stats[0].rounds < before


@pytest.mark.parametrize("method", ["anpd:persist=true", "suffix"])
def test_a_drafter_does_not_guess_tokens_of_another_model(method: str) -> None:
    large, small = new_model("llama", vocab_size=200), new_model("llama", vocab_size=20)
    pace = Pace(method, budget=8)
    for model in (large, large, small):
        told = answer(model, PROMPT, max_new_tokens=24, custom_generate=pace)
        assert told == answer(model, PROMPT, max_new_tokens=24)


@pytest.mark.parametrize(
    "settings", [{"seed": 1.5}, {"seed": "x"}, {"budget": 2.5}, {"budget": -1}]
)
def test_a_seed_or_budget_that_is_no_whole_number_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=rf"^{next(iter(settings))} must be"):
        Pace("anpd", **settings)


@pytest.mark.parametrize("holder", ["call", "configuration", "model"])
def test_stop_strings_may_come_from_any_configuration(holder: str) -> None:
    model, tokenizer = new_model("llama", pad_token_id=0), byte_tokenizer()
    stop = tokenizer.decode(answer(model, PROMPT, max_new_tokens=12)[-3:])
    options: dict[str, Any] = {"max_new_tokens": 30}
    if holder == "configuration":
        options = {"generation_config": GenerationConfig(stop_strings=[stop], **options)}
    elif holder == "model":
        model.generation_config.stop_strings = ["never met", stop]
    else:
        model.generation_config.stop_strings = ["never met"]
        options["stop_strings"] = stop
    fast = accelerate(model, "anpd", budget=8)
    told = answer(fast, PROMPT, tokenizer=tokenizer, **options)
    assert told == answer(model, PROMPT, tokenizer=tokenizer, **options)
    assert len(told) <= len(PROMPT) + 12
    with pytest.raises(UsageError, match="need the tokenizer"):
        answer(fast, PROMPT, **options)
    assert options.get("generation_config", GenerationConfig()).stop_strings in (None, [stop])


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda fast: pickle.loads(pickle.dumps(fast))],  # noqa: S301
    ids=["copy", "deepcopy", "pickle"],
)
def test_an_accelerated_model_can_be_copied(copied: Callable[[Accelerated], Accelerated]) -> None:
    model = new_model("llama")
    fast, expected = accelerate(model, "suffix"), answer(model, PROMPT, max_new_tokens=20)
    for _ in range(2):  # before and after it has learned something of the model
        twin = copied(fast)
        assert answer(twin, PROMPT, max_new_tokens=20) == expected
        assert answer(fast, PROMPT, max_new_tokens=20) == expected
    with pytest.raises(AttributeError, match="__nothing__"):
        _ = fast.__nothing__


def test_what_is_set_or_changed_reaches_the_model_and_keeps_the_wrapper(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = new_model("llama")
    fast = accelerate(model, "anpd", budget=8)
    fast.generation_config = GenerationConfig(max_new_tokens=7)
    assert model.generation_config.max_new_tokens == 7
    assert len(answer(fast, PROMPT)) == len(PROMPT) + 7
    monkeypatch.setattr(type(model), "xpu", lambda self: self)
    assert fast.to(torch.float64).eval().xpu() is fast
    assert model.dtype == torch.float64
    assert answer(fast, PROMPT) == answer(model, PROMPT)


def test_a_model_that_is_spread_keeps_the_wrapper_when_it_is_moved() -> None:
    """Accelerate puts functions of its own in the place of `to` and `cuda`."""
    model = new_model("llama")
    places = {"model": "cpu", "lm_head": "cpu"}
    fast = accelerate(dispatch_model(model, places, force_hooks=True), "anpd", budget=8)
    assert fast.to(torch.float64) is fast


def test_the_method_may_take_the_place_of_the_models_own() -> None:
    model = new_model("llama")
    expected = answer(model, PROMPT, max_new_tokens=20)
    fast = accelerate(model, "anpd", budget=8)
    model.generate = fast.generate
    assert answer(model, PROMPT, max_new_tokens=20) == expected
    assert [stats.tokens for stats in fast.stats] == [20]


def test_another_custom_generate_is_refused(model: PreTrainedModel) -> None:
    fast = accelerate(model, "anpd", budget=8)
    assert answer(fast, PROMPT, max_new_tokens=4, custom_generate=None) == answer(
        model, PROMPT, max_new_tokens=4
    )
    with pytest.raises(UsageError, match="leave out custom_generate"):
        answer(fast, PROMPT, custom_generate=Pace("plain"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"assistant_model": object()}, r'accelerate\(model, "speculative", draft=…\)'),
        ({"cache_implementation": "paged"}, "leave it out"),
        ({"synced_gpus": True}, "generate of the model itself"),
    ],
    ids=["assistant", "paged", "synced"],
)
def test_what_would_be_lost_on_the_way_is_refused(
    model: PreTrainedModel, options: dict[str, Any], words: str
) -> None:
    fast, (name,) = accelerate(model, "anpd", budget=8), options
    with pytest.raises(UsageError, match=f"^{name} is not supported here: .*{words}"):
        answer(fast, PROMPT, max_new_tokens=4, **options)
    unset = {"assistant_model": None, "cache_implementation": None, "synced_gpus": False}
    told = answer(fast, PROMPT, max_new_tokens=4, **unset)
    assert told == answer(model, PROMPT, max_new_tokens=4)


class Wrapper:
    """Around a model, as PEFT's and torch.compile's."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.generate = model.generate


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Wrapper, r"generate of the Wrapper with custom_generate=paceline\.Pace"),
        (lambda model: "owner/name", r"not str: paceline\.load takes a name"),
        (lambda model: model.model, "LlamaModel cannot generate: .* AutoModelForCausalLM"),
    ],
    ids=["wrapper", "name", "no head"],
)
def test_what_does_not_generate_as_a_model_does_is_refused_with_advice(
    model: PreTrainedModel, given: Callable[[PreTrainedModel], Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        accelerate(given(model))


@pytest.mark.parametrize("method", ["anpd:persist=true", "suffix"])
def test_a_model_may_change_between_calls(method: str) -> None:
    model = new_model("llama")
    fast = accelerate(model, method, budget=8)
    changes: list[Callable[[], Any]] = [
        lambda: model.resize_token_embeddings(20, mean_resizing=False),
        lambda: model.to(torch.float64),
        lambda: model.set_attn_implementation("eager"),
    ]
    for change in (lambda: None, *changes):
        change()
        expected = answer(model, PROMPT, max_new_tokens=24)
        for _ in range(2):
            assert answer(fast, PROMPT, max_new_tokens=24) == expected


@pytest.mark.parametrize("method", ["speculative", "ouroboros"])
def test_a_draft_model_may_change_between_calls(method: str) -> None:
    model, draft, ids = new_model("llama"), new_model("llama", seed=1), torch.tensor([PROMPT] * 2)
    fast = accelerate(model, method, draft=draft)
    expected = model.generate(ids, max_new_tokens=20)
    for change in (lambda: None, draft.double):
        change()
        assert torch.equal(fast.generate(ids, max_new_tokens=20), expected)
    draft.train()
    with pytest.raises(ModelError, match="eval"):
        fast.generate(ids, max_new_tokens=20)


@pytest.mark.parametrize("rows", [1, 2])
def test_scores_are_compared_as_precisely_as_a_processor_makes_them(rows: int) -> None:
    model, ids = new_model("llama"), torch.tensor([PROMPT] * rows)

    def near_ties(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.ones_like(scores, dtype=torch.float64) + 1e-9 * torch.arange(scores.shape[1])

    given: dict[str, Any] = {"max_new_tokens": 5, "logits_processor": [near_ties]}
    for prompts in (ids, ids.int()):
        expected = model.generate(prompts, do_sample=False, **given)
        found = accelerate(model, "anpd").generate(prompts, do_sample=False, **given)
        assert torch.equal(found, expected) and found.dtype == torch.int64


def test_an_accelerated_model_is_called_like_the_model(model: PreTrainedModel) -> None:
    fast, ids = accelerate(model, "anpd", budget=8), torch.tensor([PROMPT])
    assert torch.equal(fast(ids).logits, model(ids).logits)
    config = GenerationConfig(max_new_tokens=9, repetition_penalty=1.3)
    assert torch.equal(fast.generate(ids, config), model.generate(ids, config))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"penalty_alpha": 0.6, "top_k": 4}, "contrastive search .* leave out penalty_alpha"),
        ({"dola_layers": "high"}, "dola generation .* leave out dola_layers"),
    ],
    ids=["contrastive search", "DoLa"],
)
def test_methods_that_write_another_text_are_refused(
    model: PreTrainedModel, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        answer(model, PROMPT, max_new_tokens=4, custom_generate=Pace("anpd"), **options)
    with pytest.raises(UsageError, match=words):
        answer(accelerate(model, "anpd"), PROMPT, max_new_tokens=4, **options)


@pytest.mark.parametrize("holder", ["call", "configuration", "model"])
def test_token_healing_is_refused_by_name(holder: str) -> None:
    model, options = new_model("llama", pad_token_id=0), dict[str, Any](max_new_tokens=4)
    if holder == "call":
        options["token_healing"] = True
    elif holder == "configuration":
        options = {"generation_config": GenerationConfig(token_healing=True, max_new_tokens=4)}
    else:
        model.generation_config.token_healing = True
    fast = accelerate(model, "anpd", budget=8)
    for more in ({}, {"tokenizer": byte_tokenizer()}):
        with pytest.raises(UsageError, match="token_healing is not supported: heal the prompt"):
            answer(fast, PROMPT, **options, **more)
    if holder == "model":
        assert answer(fast, PROMPT, max_new_tokens=4, token_healing=False)
    config = GenerationConfig(token_healing=True, max_new_tokens=4)
    with pytest.raises(UsageError, match="token_healing is not supported"):
        Pace("anpd")(model, torch.tensor([PROMPT]), generation_config=config)
