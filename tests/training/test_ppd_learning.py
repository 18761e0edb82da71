"""Prompt tokens at many points of one pass learn what they would learn one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.tiny_models import VOCAB, new_model, tiny_model
from tests.training.packed import Noted, base_for, base_of, window_of

from paceline.errors import ModelError, UsageError
from paceline.trained_configs import PromptConfig
from paceline.training.methods.ppd import Ppd, PpdSettings
from paceline.training.methods.prompt_model import PromptModel, PromptRows, among_one_point
from paceline.training.trainer import Trainer

ARCHITECTURES = ["llama", "qwen2", "gemma3", "gpt2", "mistral"]


def texts(count: int = 2, length: int = 24) -> list[list[int]]:
    """Random texts, each some tokens longer than the one before."""
    noise = torch.Generator().manual_seed(3)
    return [torch.randint(VOCAB, (length + 3 * i,), generator=noise).tolist() for i in range(count)]


def prompts_for(
    config: PromptConfig, architecture: str = "llama", **changes: object
) -> PromptModel:
    """Prompt tokens that are far from one another."""
    prompts = PromptModel(base_of(architecture, **changes), config)
    noise = torch.randn(prompts.embeddings.shape, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        prompts.embeddings += noise
    return prompts


def alone(prompts: PromptModel, text: list[int], point: int) -> torch.Tensor:
    """[m, hidden]: the states of prompt tokens after the beginning of a text, one embedding after
    the other in a pass of its own, without masks and caches."""
    model, rows = prompts.model, []
    words = model.get_input_embeddings()(torch.tensor([text[: point + 1]]))
    for ept in range(prompts.config.epts):
        read = torch.cat([words, prompts.embeddings[:, ept][None]], dim=1)
        found = model.base_model(inputs_embeds=read, use_cache=False).last_hidden_state
        rows.append(found[0, point + 1 :])
    return torch.stack(rows).mean(dim=0)


@pytest.mark.parametrize("epts", [1, 3])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.no_grad()
def test_many_points_in_one_pass_are_many_passes(architecture: str, epts: int) -> None:
    prompts = prompts_for(PromptConfig(prompt_tokens=3, epts=epts), architecture)
    first, second = texts()
    batch = window_of(prompts.model, [first, second])
    points = torch.tensor([[2, 17, 24, 41]])
    found = prompts(batch, points)[0]
    places = [(first, 2), (first, 17), (second, 0), (second, 17)]
    for (text, point), states in zip(places, found, strict=True):
        torch.testing.assert_close(states, alone(prompts, text, point), atol=2e-5, rtol=1e-4)


@torch.no_grad()
def test_a_text_may_fill_the_context() -> None:
    """The last prompt tokens at its end are where GPT-2 has no positions; they guess nothing."""
    prompts = prompts_for(PromptConfig(prompt_tokens=3), "gpt2", n_positions=24)
    (text,) = texts(1)
    found = prompts(window_of(prompts.model, [text]), torch.tensor([[17, 21]]))[0]
    torch.testing.assert_close(found[0], alone(prompts, text, 17), atol=2e-5, rtol=1e-4)
    assert bool(found.isfinite().all())


def test_the_masks_are_those_of_the_thesis() -> None:
    """Figures 4.6 to 4.8: two prompt tokens with two embeddings each."""

    def drawn(mask: Any) -> list[str]:
        among = among_one_point(PromptConfig(prompt_tokens=2, epts=2, mask=mask))
        return ["".join(".x"[seen] for seen in row) for row in among.tolist()]

    assert drawn("ensemble") == ["x...", ".x..", "x.x.", ".x.x"]
    assert drawn("decoder") == ["x...", "xx..", "xxx.", "xxxx"]
    assert drawn("encoder") == ["xx..", "xx..", "xxxx", "xxxx"]


def test_prefix_tokens_belong_to_one_prompt_token_each() -> None:
    config = PromptConfig(prompt_tokens=2, prefix_tokens=2)
    batch = window_of(tiny_model("llama"), [[1, 2, 3]], padding=0)
    seen = PromptRows(batch, torch.tensor([[0, 1]]), config).visible()
    lines = ["".join(".x"[cell] for cell in row) for row in seen[0].tolist()]
    #                 prefix text rows
    assert lines == ["xx..x..x...", "..xxx..xx..", "xx..xx...x.", "..xxxx...xx"]


@torch.no_grad()
def test_what_an_extension_begins_with_changes_nothing() -> None:
    """A block that adds nothing, weights that average; more exits and prefixes do change it."""
    batch, points = window_of(tiny_model("llama"), texts(1)), torch.tensor([[4, 9]])
    plain = prompts_for(PromptConfig(epts=2))(batch, points)
    for config in (
        PromptConfig(epts=2, head="full"),
        PromptConfig(epts=2, head="small"),
        PromptConfig(epts=2, learned_weights=True),
    ):
        torch.testing.assert_close(prompts_for(config)(batch, points), plain, atol=1e-5, rtol=1e-4)
    for config in (PromptConfig(epts=2, exits=2), PromptConfig(epts=2, prefix_tokens=1)):
        assert not torch.allclose(prompts_for(config)(batch, points), plain, atol=1e-4)
    full = prompts_for(PromptConfig(head="full"))
    assert full.head is not None
    assert torch.equal(full.head.weight, base_of().head[0])


def test_places_are_some_of_the_window_and_the_same_every_time() -> None:
    base = base_of()
    batch = window_of(base.model, texts())
    told = []
    for _ in range(2):
        method, scorer = Ppd(base, PpdSettings(points=5, heads=2)), Noted()
        method.forward(batch, scorer)  # type: ignore[arg-type]
        assert method.places(batch) == 5 and len(scorer.told) == 2
        told.append(scorer.told[0])
    (states, points, valid), again = told
    assert states.shape == (1, 5, 32) and bool(valid.all())
    assert torch.equal(points, again[1]) and points[0].tolist() == sorted({*points[0].tolist()})
    assert bool(batch.place.gather(1, points).all())
    assert Ppd(base, PpdSettings(points=99)).places(batch) == int(batch.place.sum())


STEPS = 7
VARIANTS: list[dict[str, Any]] = [
    {},
    {"heads": 2, "epts": 3, "learned_weights": True},
    {"epts": 2, "mask": "decoder"},
    {"epts": 2, "mask": "encoder"},
    {"prefix_tokens": 2},
    {"output_head": "small"},
    {"output_head": "full"},
    {"exits": 2},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_kind_of_part_learns_and_the_model_does_not(variant: dict[str, Any]) -> None:
    model = new_model("llama")
    before = {name: part.clone() for name, part in model.state_dict().items()}
    given = {"steps": STEPS, "learning_rate": 0.05, "head_rate": 1.0, "warm_up": 0.0, "clip": 0.0}
    trainer = Trainer(Ppd(base_for(model), PpdSettings(**{**given, **variant})))
    first, batch = trainer.method.tensors(), window_of(model, texts(3))
    losses = [trainer.learn(batch) for _ in range(STEPS)]
    assert losses[-1] < 0.95 * losses[0]
    assert trainer.finished
    assert all(
        not torch.equal(part, first[name]) for name, part in trainer.method.tensors().items()
    )
    assert all(torch.equal(part, before[name]) for name, part in model.state_dict().items())


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"heads": 0}, "heads"),
        ({"epts": 0}, "epts"),
        ({"mask": "causal"}, "mask"),
        ({"output_head": "no"}, "output_head"),
        ({"exits": 0}, "exits"),
        ({"points": 0}, "points"),
        ({"head_rate": 0.0}, "head_rate"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        PpdSettings(**wrong)


@pytest.mark.parametrize(
    "wrong", [{"prompt_tokens": 0}, {"epts": 0}, {"mask": "causal"}, {"head": "no"}, {"exits": 0}]
)
def test_wrong_configurations_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=next(iter(wrong))):
        PromptConfig(**wrong)


def test_the_largest_seed_draws_places() -> None:
    model = new_model("llama")
    settings = PpdSettings(points=5, seed=2**64 - 1)
    batch = window_of(model, texts(1))
    assert Ppd(base_for(model), settings).places(batch) == 5
