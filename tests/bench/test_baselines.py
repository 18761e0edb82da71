"""Other software on the same model: the same text, and counts that are those of its passes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, PreTrainedModel

from paceline.bench.baselines import (
    BASELINES,
    Native,
    check_baseline,
    is_baseline,
    make_baseline,
    native,
)
from paceline.bench.trial import Method, Request, Trial
from paceline.errors import UsageError
from paceline.options import Options
from paceline.session import Session
from paceline.targets.causal_lm import CausalLMTarget
from tests.tiny_models import VOCAB, new_model, some_prompt

TOKENS = 40
GREEDY = Options(max_new_tokens=TOKENS)
PROMPT = some_prompt(30)

Widths = list[int]
"""Tokens that each pass of the model was handed."""


def looping() -> PreTrainedModel:
    """A model that looks little further back than its last token: its text soon repeats itself."""
    model = new_model("llama")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(0.05)
    return model


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> dict[str, PreTrainedModel]:
    """Name -> model, in the place of those that could be loaded."""
    found = {
        "tiny": looping(),
        "draft": new_model("llama", num_hidden_layers=1),
        "stranger": new_model("llama", vocab_size=VOCAB // 2),
    }

    def load(name: str, **placement: object) -> Any:
        return SimpleNamespace(model=found[name])

    monkeypatch.setattr(native, "load_causal_lm", load)
    return found


@pytest.fixture
def widths(models: dict[str, PreTrainedModel]) -> Widths:
    """Of the passes of "tiny", as another than the baselines' own watch sees them."""
    seen: Widths = []

    def note(model: Any, args: Any, kwargs: dict[str, Any]) -> None:
        seen.append((kwargs.get("input_ids") if args == () else args[0]).shape[1])

    models["tiny"].register_forward_pre_hook(note, with_kwargs=True)
    return seen


@cache
def plain() -> list[int]:
    """What paceline writes."""
    tokenizer: Any = None  # nothing has to be read or written
    session = Session(CausalLMTarget(looping()), tokenizer, "plain")
    return Method("plain", session).generate(Request(PROMPT, (), GREEDY)).output


def baseline(name: str, **settings: Any) -> Callable[..., Trial]:
    """Let a baseline generate, with options."""
    made = make_baseline(name, Native("tiny", **settings))
    assert made.name == name
    return lambda **options: made.generate(Request(PROMPT, (), GREEDY.with_(**options)))


NAMES = (
    "transformers",
    "transformers-lookup",
    "transformers-lookup:k=2",
    "transformers-assisted:draft=draft",
    "transformers-assisted:draft=tiny",
)


@pytest.mark.parametrize("name", NAMES)
def test_the_text_is_plain_decodings(models: dict[str, PreTrainedModel], name: str) -> None:
    generate = baseline(name)
    assert [generate().output for _ in range(2)] == [plain()] * 2


def test_plain_transformers_is_a_pass_a_token(widths: Widths) -> None:
    trial = baseline("transformers")()
    assert widths == [len(PROMPT)] + [1] * (TOKENS - 1)
    stats = trial.stats
    assert (stats.rounds, stats.tokens, stats.drafted, stats.accepted) == (TOKENS, TOKENS, 0, 0)
    assert (stats.mean_acceptance_length, stats.triggers) == (1.0, 0)
    assert 0 < stats.prefill_seconds < stats.prefill_seconds + stats.target_seconds < trial.seconds


@pytest.mark.parametrize("k", [1, 4, 10])
def test_lookup_counts_what_it_guessed_and_gained(widths: Widths, k: int) -> None:
    stats = baseline(f"transformers-lookup:k={k}")().stats
    guesses = [widths[0] - len(PROMPT), *(width - 1 for width in widths[1:])]
    assert stats.rounds == len(widths) < TOKENS
    assert stats.drafted == sum(guesses)
    assert stats.depth_histogram == {depth: guesses.count(depth) for depth in set(guesses)}
    assert max(guesses) == k
    assert 0 < stats.accepted == TOKENS - stats.rounds <= stats.drafted
    assert stats.mean_acceptance_length == TOKENS / len(widths)


def test_an_assistant_that_is_the_model_itself_is_right(models: dict[str, PreTrainedModel]) -> None:
    assert 0 in PROMPT  # which is no padding
    models["twin"] = looping()
    never = max(set(range(VOCAB)) - {*PROMPT, *plain()})
    for settings in ({}, {"eos_ids": [never]}):
        stats = baseline("transformers-assisted:draft=twin", **settings)().stats
        assert stats.accepted == stats.drafted == TOKENS - stats.rounds > 0
    other = baseline("transformers-assisted:draft=draft")().stats
    assert other.accepted == TOKENS - other.rounds < other.drafted


def test_an_assistant_needs_a_draft_of_the_same_vocabulary(
    models: dict[str, PreTrainedModel],
) -> None:
    for name, words in (
        ("transformers-assisted", "needs a draft model"),
        ("transformers-assisted:draft=stranger", "vocabulary of 32 tokens and tiny of 64"),
    ):
        with pytest.raises(UsageError, match=words):
            baseline(name)


@pytest.mark.parametrize("name", NAMES[:2])
def test_end_tokens_end_the_text(models: dict[str, PreTrainedModel], name: str) -> None:
    tokens = plain()
    generate = baseline(name, eos_ids=[tokens[7]])
    assert generate().output == tokens[: tokens.index(tokens[7]) + 1]
    assert generate(ignore_eos=True).output == tokens


def test_a_models_own_defaults_do_not_count(models: dict[str, PreTrainedModel]) -> None:
    expected = plain()
    models["tiny"].generation_config = GenerationConfig(
        repetition_penalty=5.0, do_sample=True, temperature=9.0, eos_token_id=expected[0]
    )
    assert baseline("transformers")().output == expected


def test_sampling_is_from_all_tokens_unless_asked_otherwise(
    models: dict[str, PreTrainedModel],
) -> None:
    generate = baseline("transformers")
    wild = {"temperature": 1000.0, "seed": 1}
    tokens = generate(**wild).output
    with torch.no_grad():
        rows = looping()(torch.tensor([[*PROMPT, *tokens]])).logits[0, len(PROMPT) - 1 : -1]
    ranks = [int((row > row[token]).sum()) for row, token in zip(rows, tokens, strict=True)]
    assert max(ranks) > 55 and min(ranks) < 10
    assert generate(**wild).output == tokens != generate(**wild | {"seed": 2}).output
    assert generate(**wild, top_k=1).output == plain()


def test_passes_of_others_are_not_counted(widths: Widths) -> None:
    shared = Native("tiny")
    one, two = (make_baseline(name, shared) for name in NAMES[:2])
    request = Request(PROMPT, (), GREEDY)
    assert one.generate(request).stats.rounds == TOKENS
    assert two.generate(request).stats.rounds == len(widths) - TOKENS
    shared.model(torch.tensor([PROMPT]))
    assert one.generate(request).stats.rounds == TOKENS


# Names and settings.


def test_rivals_are_known_by_name() -> None:
    assert all(is_baseline(name) and is_baseline(f"{name}:k=1") for name in BASELINES)
    assert not any(map(is_baseline, ("plain", "anpd:n=3,k=2", "transformer", "")))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("transformers:k=1", "no setting 'k'"),
        ("transformers-lookup:k=0", "k must be a whole number >= 1"),
        ("transformers-lookup:k=x", "transformers-lookup:k must be a whole number"),
        ("transformers-lookup:n=1", "no setting 'n'"),
        ("transformers-assisted", "needs a draft model"),
        ("vllm", "unknown baseline 'vllm': use one of transformers, "),
    ],
)
def test_wrong_settings_are_refused_before_a_model_is_loaded(name: str, words: str) -> None:
    for refuse in (check_baseline, lambda name: make_baseline(name, Native("nothing"))):
        with pytest.raises(UsageError, match=words) as caught:
            refuse(name)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["llama.cpp", "llama.cpp-lookup:k=3"])
def test_llama_cpp_needs_its_library_and_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    def refusal(gguf: Path | None) -> str:
        with pytest.raises(UsageError) as caught:
            check_baseline(name, gguf)
        return str(caught.value)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "needs llama-cpp-python" in refusal(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: ModuleSpec(name, None))
    assert "--gguf" in refusal(None)
    assert str(tmp_path / "missing.gguf") in refusal(tmp_path / "missing.gguf")
    (tmp_path / "there.gguf").touch()
    check_baseline(name, tmp_path / "there.gguf")
