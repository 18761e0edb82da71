"""What a draft model learns from, and how its agreement is counted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.tiny_models import VOCAB, new_model, tiny_model
from tests.training.packed import Noted, base_for, base_of, window_of

from paceline.errors import UsageError
from paceline.training.cutting import cut, mixed_precision
from paceline.training.methods.draft import Draft, DraftSettings
from paceline.training.scorer import Scorer, Teacher
from paceline.training.tally import Tally
from paceline.training.trainer import Trainer

ARCHITECTURES = ["llama", "qwen2", "gemma3", "gpt2", "mistral"]
SOME = torch.tensor([0, 3, 5, 17, 40, 41, 63])


def texts() -> list[list[int]]:
    """Random texts, longer than a sliding window of the models."""
    noise = torch.Generator().manual_seed(3)
    return [torch.randint(VOCAB, (14 + 3 * i,), generator=noise).tolist() for i in range(3)]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.no_grad()
def test_packed_texts_are_read_as_texts_alone(architecture: str) -> None:
    base = base_of(architecture)
    method, scorer = Draft(base, DraftSettings(layers="0,2", heads=3)), Noted()
    batch = window_of(base.model, texts())
    method.forward(batch, scorer)  # type: ignore[arg-type]
    alone = cut(base.model, [0, 2])
    expected = torch.cat(
        [alone.base_model(torch.tensor([text])).last_hidden_state[0] for text in texts()]
    )
    assert len(scorer.told) == 3
    for head, (states, points, valid) in enumerate(scorer.told):
        assert int(valid.sum()) == sum(len(text) - max(2, head + 1) for text in texts())
        wanted = expected[points[valid] + head + 1]
        torch.testing.assert_close(states[valid], wanted, atol=2e-5, rtol=1e-4)


def test_only_the_first_guess_is_learned() -> None:
    """The others of a chain are the same guess at other places."""
    base = base_of()
    method, scorer = Draft(base, DraftSettings(heads=3)), Noted()
    method.forward(window_of(base.model, texts()), scorer)  # type: ignore[arg-type]
    assert len(scorer.told) == 1


def test_only_its_own_layers_learn() -> None:
    base = base_of(tie_word_embeddings=True)
    before = {name: part.clone() for name, part in base.model.named_parameters()}
    settings = DraftSettings(layers="0,2", steps=3, learning_rate=0.01, warm_up=0.0, heads=2)
    trainer = Trainer(Draft(base, settings))
    names = list(trainer.method.learning())
    assert "model.norm.weight" in names
    assert all(name.startswith("model.layers.") for name in names if name != "model.norm.weight")
    batch = window_of(base.model, texts())
    losses = [trainer.learn(batch) for _ in range(3)]
    assert losses[2] < losses[0] and trainer.finished
    for name, part in base.model.named_parameters():
        assert torch.equal(part, before[name]) and part.grad is None and not part.requires_grad


def test_of_a_layer_with_an_update_only_that_learns() -> None:
    base = base_of()
    settings = DraftSettings(layers="0,2", rank=2, steps=3, learning_rate=0.01, warm_up=0.0)
    trainer = Trainer(Draft(base, settings))
    before = trainer.method.tensors()
    linear = [name for name in before if "_proj" in name]
    assert linear and all(".lora_" in name for name in linear)
    assert {"model.norm.weight", "model.layers.0.input_layernorm.weight"} <= before.keys()
    batch = window_of(base.model, texts())
    losses = [trainer.learn(batch) for _ in range(3)]
    assert losses[2] < losses[0]
    after = trainer.method.tensors()
    assert not any(torch.equal(before[name], after[name]) for name in after)


def test_a_base_in_half_precision_teaches_weights_in_float32() -> None:
    base = base_of(dtype=torch.bfloat16)
    settings = DraftSettings(layers="0,2")
    trainer = Trainer(Draft(base, settings))
    assert {part.dtype for part in trainer.method.learning().values()} == {torch.float32}
    with mixed_precision(base.model):
        assert torch.ones(2, 2).matmul(torch.ones(2, 2)).dtype == torch.bfloat16
    trainer.loss(window_of(base.model, texts())).backward()  # type: ignore[no-untyped-call]
    assert all(part.grad is not None for part in trainer.method.learning().values())


def measured(token_ids: torch.Tensor | None) -> tuple[Tally, dict[str, Any]]:
    """A draft of all layers, as it begins, beside its base."""
    base = base_for(new_model("llama"), token_ids)
    settings = DraftSettings(layers="0,1,2", heads=4)
    tally = Tally(3, 4)
    with torch.no_grad():
        batch = window_of(base.model, texts())
        scorer = Scorer(batch, Teacher(base.head, token_ids, VOCAB), settings, tally)
        Draft(base, settings).forward(batch, scorer)
    return tally, tally.as_json()


def test_a_draft_that_is_the_base_agrees_with_it() -> None:
    _, found = measured(None)
    assert found["top1"] == [1.0] * 4 and found["acceptance"] == pytest.approx([1.0] * 4, abs=1e-3)
    # Four tokens of a chain and the one that the target adds, but for the ends of the texts.
    places = sum(len(text) - 2 for text in texts())
    assert found["points"] == places
    assert found["tokens_per_pass"] == pytest.approx(1 + (4 * places - 3 * 6) / places, abs=1e-3)


def test_what_cannot_be_said_is_a_miss() -> None:
    _, found = measured(SOME)
    assert 0 < found["top1"][0] == pytest.approx(1 - found["cannot_be_guessed"][0], abs=1e-4)
    assert found["top5"] == found["top1"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_draft_may_say_a_single_token(dtype: torch.dtype) -> None:
    """Whose scores have no spread of their own."""
    base = new_model("llama", dtype=dtype)
    for token in (0, 17):
        assert cut(base, [0, 2], torch.tensor([token])).config.num_hidden_layers == 2


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="leave out --vocabulary or --standalone"):
        DraftSettings(vocabulary=5, standalone=True)
    with pytest.raises(UsageError, match="numbers separated by commas, got '0,x'"):
        DraftSettings(layers="0,x")
    assert DraftSettings().kept(30) == (0, 29)
    assert DraftSettings(layers="0,10").kept(30) == (0, 10)


@torch.no_grad()
def test_teachers_say_what_the_model_says() -> None:
    """The frozen head on kept states gives the model's own distribution."""
    model = tiny_model("llama")
    base = base_for(model)
    batch = window_of(model, texts()[:1], padding=0)
    shares, _ = Teacher(base.head, None, VOCAB).chances(batch.last[0])
    expected = model(batch.tokens).logits[0].softmax(dim=-1)
    torch.testing.assert_close(shares, expected, atol=1e-5, rtol=1e-4)
