"""Folders of heads, and Medusa's heads themselves."""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from weakref import ref

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.trained_heads import (
    HIDDEN,
    VOCAB,
    greens_of,
    learned,
    output_head,
    save_chimera,
    save_eagle,
    save_medusa,
    small_chimera,
    small_medusa,
)
from torch.nn import functional as F

from paceline.drafters.chimera_levels import levels_of
from paceline.drafters.guesses import Guesses, guesses_of
from paceline.drafters.head_module import HeadWeights
from paceline.drafters.host import Host
from paceline.drafters.level_tree import BeamSettings
from paceline.drafters.parts import find_parts
from paceline.drafters.trained_heads import ChimeraParts, EagleParts, MedusaParts
from paceline.errors import ModelError, UsageError
from paceline.kernels import choice
from paceline.protocols import HIDDEN_STATES
from paceline.trained_configs import ChimeraConfig, EagleConfig, MedusaConfig


class Shown:
    """What heads ask of a target."""

    capabilities = frozenset({HIDDEN_STATES})

    def word_table(self) -> None:
        return None

    def output_head(self, tokens: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        weight, bias = output_head(0)
        return (weight, bias) if tokens is None else (weight[tokens], bias[tokens])

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        return torch.randn(VOCAB, HIDDEN)[tokens]


def shown() -> Host:
    return Host(cast(Any, Shown()))


MEDUSA = [
    MedusaConfig(heads=3),
    MedusaConfig(heads=2, layers=2, form="full"),
    MedusaConfig(heads=2, layers=0, form="full", vocabulary=5),
    MedusaConfig(heads=2, vocabulary=5),
]
CHIMERA = [
    ChimeraConfig(heads=2),
    ChimeraConfig(heads=2, form="full", vocabulary=5),
    ChimeraConfig(heads=2, residual=False, layers=2, order=2),
    ChimeraConfig(heads=2, rank=8),
]


@pytest.mark.parametrize("config", MEDUSA, ids=str)
@torch.no_grad()
def test_medusa_heads_are_those_of_the_paper(config: MedusaConfig) -> None:
    """One head after the other, as it is written down there."""
    heads = small_medusa(config)
    states = torch.randn(5, HIDDEN)
    parts = dict(heads.named_parameters())
    weight, bias = output_head(config.vocabulary)
    found = heads(states)
    assert found.shape == (5, config.heads, config.vocabulary or VOCAB)
    for head in range(config.heads):
        inner = states
        for layer in range(config.layers):
            block = parts["blocks.weight"][layer, head], parts["blocks.bias"][layer, head]
            inner = inner + F.silu(inner @ block[0].T + block[1])
        own = parts["output"][head] if config.form == "full" else weight
        torch.testing.assert_close(found[:, head], inner @ own.T + bias, atol=1e-5, rtol=1e-4)


def test_medusa_heads_begin_as_the_targets_own() -> None:
    for config in MEDUSA:
        heads = small_medusa(config, noise=0.0)
        states = torch.randn(4, HIDDEN)
        weight, bias = output_head(config.vocabulary)
        expected = (states @ weight.T + bias)[:, None].expand(-1, config.heads, -1)
        torch.testing.assert_close(heads(states), expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_what_was_saved_guesses_alike(tmp_path: Path) -> None:
    for place, config in enumerate(MEDUSA):
        parts = find_parts(MedusaParts, str(save_medusa(tmp_path / f"m{place}", config)), "toy")
        states = torch.randn(6, HIDDEN)
        opened = parts.open(shown(), "native")
        torch.testing.assert_close(
            opened(states), small_medusa(config)(states), atol=2e-2, rtol=1e-2
        )
    for place, config in enumerate(CHIMERA):
        found = find_parts(ChimeraParts, str(save_chimera(tmp_path / f"c{place}", config)), "toy")
        model = small_chimera(config)
        opened = found.open(shown(), "native")
        tokens, matures = torch.randint(VOCAB, (1, 12)), torch.randn(1, 12, HIDDEN)
        asked = (tokens, matures, torch.tensor([[2, 7]]))
        torch.testing.assert_close(
            learned(opened, *asked)[0], learned(model, *asked)[0], atol=5e-2, rtol=2e-2
        )
        assert not any(part.requires_grad for part in opened.parameters())


def scores(guesses: Guesses) -> torch.Tensor:
    """Logits [n, vocabulary], up to a constant, from guesses of all tokens."""
    found = torch.zeros(len(guesses.tokens), VOCAB)
    for row, tokens, shares in zip(found, guesses.tokens, guesses.probabilities, strict=True):
        logits = torch.tensor(shares).log()
        row[list(tokens)] = logits - logits.mean()
    return found


def medusa_scores(parts: MedusaParts, weights: HeadWeights) -> torch.Tensor:
    return scores(parts.open(shown(), weights).guess(torch.ones(1, HIDDEN), VOCAB))


def chimera_scores(parts: ChimeraParts, weights: HeadWeights) -> torch.Tensor:
    opened = parts.open(shown(), weights)
    levels = levels_of(opened, BeamSettings(ranks=VOCAB), greens_of(opened))
    levels.read([3, 1, 2], torch.ones(2, HIDDEN))
    return scores(levels.begin())


@pytest.mark.parametrize(("weights", "most"), [("packed", 1e-5), ("int8", 0.1), ("fastest", 0.15)])
@torch.no_grad()
def test_quick_layers_guess_alike(
    weights: HeadWeights, most: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "WORTH_CHOOSING", 0)
    kinds: tuple[HeadWeights, ...] = ("native", weights)
    for place, config in enumerate((*MEDUSA, *CHIMERA)):
        folder = tmp_path / f"{place}"
        try:
            if isinstance(config, MedusaConfig):
                parts = find_parts(MedusaParts, str(save_medusa(folder, config)), "toy")
                slow, quick = (medusa_scores(parts, each) for each in kinds)
            else:
                drawn = find_parts(ChimeraParts, str(save_chimera(folder, config)), "toy")
                slow, quick = (chimera_scores(drawn, each) for each in kinds)
        except UsageError as error:  # a processor without products in 8 bits
            pytest.skip(str(error))
        assert (quick - slow).norm() <= most * slow.norm()


def test_weights_that_cannot_be_had_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.kernels.block_layers.unavailable", lambda: "was not built")
    parts = find_parts(MedusaParts, str(save_medusa(tmp_path, MEDUSA[0])), "toy")
    with pytest.raises(UsageError, match="int8 weights here: was not built"):
        parts.open(shown(), "int8")
    unknown: Any = "int4"
    with pytest.raises(UsageError, match=r"int4 weights here: they must be one of fastest, native"):
        parts.open(shown(), unknown)


def test_drafters_of_a_host_share_a_module(tmp_path: Path) -> None:
    parts = find_parts(MedusaParts, str(save_medusa(tmp_path, MEDUSA[0])), "toy")
    one, other = shown(), shown()
    opened = parts.open(one)
    assert parts.open(one) is opened
    assert parts.open(one, "packed") is not opened
    assert parts.open(other) is not opened
    gone = ref(opened)
    del opened, one
    gc.collect()
    assert gone() is None, "nobody uses it any more"


def test_guesses_are_tokens_by_rank(tmp_path: Path) -> None:
    parts = find_parts(MedusaParts, str(save_medusa(tmp_path, MEDUSA[3])), "toy")
    heads = parts.open(shown())
    state = torch.randn(1, HIDDEN)
    found = heads.guess(state, 3)
    logits = parts.open(shown(), "native")(state)[0]
    for row, tokens, shares in zip(logits, found.tokens, found.probabilities, strict=True):
        assert tokens == (row.argsort(descending=True)[:3] + VOCAB - 5).tolist()
        assert list(shares) == sorted(shares, reverse=True)
    assert [len(row) for row in heads.guess(state, 10).tokens] == [5, 5]
    sure = guesses_of(torch.tensor([[50.0, 0, 0, -50]]), 4, None)
    assert sure.tokens[0][0] == 0 and 0.999 < sum(sure.probabilities[0]) <= 1


@pytest.mark.parametrize(
    ("kind", "wrong", "said"),
    [
        (EagleConfig, {"steps": 0}, "steps must be at least 1, got 0"),
        (EagleConfig, {"vocabulary": -1}, "vocabulary must be at least 0"),
        (EagleConfig, {"kv_heads": 3}, "attention_heads must be a multiple"),
        (EagleConfig, {"head_size": 7}, "head_size even"),
        (EagleConfig, {"layers": (0, 3)}, r"ascending, from 1 up, got \(0, 3\)"),
        (EagleConfig, {"layers": (4, 3)}, "layers must be ascending"),
        (EagleConfig, {"layers": (1.5,)}, "layers must be whole numbers"),
        (EagleConfig, {"rotary_base": 1.0}, "rotary_base must be larger than 1"),
        (EagleConfig, {"rotary_base": math.nan}, "rotary_base must be larger than 1"),
        (EagleConfig, {"head_size": 8.0}, r"head_size must be a whole number, got 8\.0"),
        (MedusaConfig, {"heads": 0}, "heads must be at least 1, got 0"),
        (MedusaConfig, {"vocabulary": -1}, "vocabulary must be at least 0"),
        (MedusaConfig, {"form": "low"}, "form must be one of compact, full, got 'low'"),
        (MedusaConfig, {"layers": 0}, "compact heads need a residual block"),
        (ChimeraConfig, {"order": 6}, "order must be 1 to 5, got 6"),
        (ChimeraConfig, {"bottom": "lstm"}, "bottom must be one of ngram, "),
        (ChimeraConfig, {"kv_heads": 3}, "heads must be a multiple"),
        (ChimeraConfig, {"form": "full", "layers": 1}, "no residual blocks"),
        (ChimeraConfig, {"rotary_base": 0}, "rotary_base must be larger than 1, got 0"),
        (ChimeraConfig, {"order": 3.0}, r"order must be a whole number, got 3\.0"),
    ],
)
def test_wrong_configurations_are_refused(kind: Any, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        kind(**wrong)


def test_damaged_folders_and_those_of_others_are_refused(tmp_path: Path) -> None:
    saves: dict[Any, Callable[[Path], Path]] = {
        MedusaParts: save_medusa,
        ChimeraParts: save_chimera,
        EagleParts: save_eagle,
    }
    for kind, save in saves.items():
        folder = save(tmp_path / kind.method)
        with pytest.raises(
            ModelError, match=rf"{kind.kind} were trained for a test's model \(toy\), not .*other"
        ):
            find_parts(kind, str(folder), "other")
        with pytest.raises(ModelError, match=f"there are no {kind.kind} for this model: train so"):
            find_parts(kind, "", "nobody's")
        tensors = folder / "model.safetensors"
        whole = tensors.read_bytes()
        tensors.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(ModelError, match=rf"cannot read the {kind.kind} .*model.safetensors"):
            find_parts(kind, str(folder), "toy")
        tensors.write_bytes(whole)
        parts = load_file(tensors)
        name = sorted(parts)[0]
        save_file({**parts, name: parts[name][..., :-1].contiguous()}, tensors)
        with pytest.raises(ModelError, match=rf"is damaged: the shape of its {name} is \("):
            find_parts(kind, str(folder), "toy")
        save_file({**parts, name: parts[name] * torch.inf}, tensors)
        with pytest.raises(ModelError, match="contains NaN or infinite values"):
            find_parts(kind, str(folder), "toy")
    with pytest.raises(ModelError, match="does not describe Medusa heads"):
        find_parts(MedusaParts, str(tmp_path / "chimera"), "toy")


def test_a_description_of_eagle_without_its_layers_is_refused(tmp_path: Path) -> None:
    """Its tensors would be read as those of another model."""
    path = save_eagle(tmp_path) / "config.json"
    content = json.loads(path.read_text())
    del content["layers"]
    path.write_text(json.dumps(content))
    with pytest.raises(ModelError, match=r"does not describe EAGLE parts \('layers'\)"):
        find_parts(EagleParts, str(tmp_path), "toy")


@pytest.mark.parametrize("size", [0, -1, 10**12, 10**30, "many"])
def test_a_description_with_sizes_that_cannot_be_is_refused(tmp_path: Path, size: object) -> None:
    path = save_chimera(tmp_path, CHIMERA[0]) / "config.json"
    content = json.loads(path.read_text())
    content["base_model"]["hidden_size"] = size
    path.write_text(json.dumps(content))
    with pytest.raises(ModelError, match=r"does not describe|describe no|is damaged"):
        find_parts(ChimeraParts, str(path.parent), "toy")


def test_token_ids_must_be_the_models(tmp_path: Path) -> None:
    folder = save_medusa(tmp_path, MEDUSA[3])
    path = folder / "model.safetensors"
    for ids in ([3, 4, 5, 6, VOCAB], [5, 4, 3, 2, 1], [-1, 2, 3, 4, 5]):
        save_file({**load_file(path), "token_ids": torch.tensor(ids)}, path)
        with pytest.raises(ModelError, match="token_ids are not ascending ids of the model"):
            MedusaParts.from_pretrained(folder)
    for wrong in (torch.arange(5.0), torch.arange(5, dtype=torch.int32)):
        save_file({**load_file(path), "token_ids": wrong}, path)
        with pytest.raises(ModelError, match="token_ids are not ascending ids of the model"):
            MedusaParts.from_pretrained(folder)


def test_ids_without_a_vocabulary_limit_nothing(tmp_path: Path) -> None:
    folder = save_medusa(tmp_path, MEDUSA[0])
    path = folder / "model.safetensors"
    save_file({**load_file(path), "token_ids": torch.arange(0)}, path)
    assert MedusaParts.from_pretrained(folder).open(shown()).outputs == VOCAB


def test_common_ngrams_must_be_the_models(tmp_path: Path) -> None:
    folder = save_chimera(tmp_path, CHIMERA[0])
    path = folder / "model.safetensors"
    for wrong in (torch.zeros(4), torch.zeros(4, 2), torch.full((4, 3), VOCAB), -torch.ones(4, 3)):
        save_file({**load_file(path), "common_ngrams": wrong.long()}, path)
        with pytest.raises(ModelError, match="common_ngrams are not n-grams of the model"):
            ChimeraParts.from_pretrained(folder)


def test_every_tensor_in_eight_bits_needs_its_scale(tmp_path: Path) -> None:
    folder = save_chimera(tmp_path, CHIMERA[0])
    path, name = folder / "model.safetensors", "encoder.mature_norm"
    save_file({**load_file(path), name: torch.ones(HIDDEN, dtype=torch.int8)}, path)
    with pytest.raises(ModelError, match=rf"its {name}\.scale is missing"):
        ChimeraParts.from_pretrained(folder)


def test_small_floats_can_be_read(tmp_path: Path) -> None:
    folder = save_medusa(tmp_path, MEDUSA[0])
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file({name: each.to(torch.float8_e4m3fn) for name, each in tensors.items()}, path)
    assert MedusaParts.from_pretrained(folder).open(shown()).outputs == VOCAB
