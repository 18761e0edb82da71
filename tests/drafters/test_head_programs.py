"""Heads as programs guess what their modules guess."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from weakref import ref

import numpy as np
import pytest
import torch
from tests.c_library import needs_library
from tests.trained_heads import HIDDEN, VOCAB, greens_of, small_chimera, small_eagle, small_medusa

from paceline.drafters.chimera_levels import (
    ModuleLevels,
    ProgramLevels,
    encoded,
    levels_of,
)
from paceline.drafters.chimera_programs import compile_chimera
from paceline.drafters.eagle_programs import compile_eagle
from paceline.drafters.guesses import Guesses
from paceline.drafters.head_module import Compile, HeadModule
from paceline.drafters.level_tree import BeamSettings
from paceline.drafters.medusa_heads import MedusaPrograms, compile_medusa
from paceline.kernels import choice
from paceline.kernels.block_layers import BlockLinear, FloatLinear, Int4Linear, Int8Linear
from paceline.kernels.programs.steps import Op
from paceline.trained_configs import ChimeraConfig, EagleConfig, MedusaConfig

pytestmark = needs_library

FOUR = BeamSettings(ranks=4)


def assert_alike(found: Guesses, expected: Guesses, tolerance: float) -> None:
    for row, other in zip(found.probabilities, expected.probabilities, strict=True):
        assert row == pytest.approx(other, abs=tolerance)
    if tolerance < 1e-3:
        assert found.tokens == expected.tokens


def test_layers_that_read_the_same_rows_are_one_product() -> None:
    model = small_chimera(ChimeraConfig(heads=2)).ready("native")
    programs, own = compile_chimera(model, FloatLinear), model.encoder
    assert programs is not None
    heads = [len(each.weight) for each in (own.query, own.key, own.value)]
    both = len(own.gate.weight) + len(own.up.weight)
    steps = programs.levels[-1]._program._lowered.steps
    sizes = [step.count for step in steps if step.op == Op.PRODUCT]
    assert sizes == [sum(heads), HIDDEN, both, HIDDEN, HIDDEN, VOCAB]


@pytest.mark.parametrize("rank", [0, 8])
@torch.no_grad()
def test_n_grams_are_encoded_alike(rank: int) -> None:
    model = small_chimera(ChimeraConfig(heads=2, rank=rank)).ready("native")
    ngrams = [tuple(ids) for ids in torch.randint(VOCAB, (11, model.config.order)).tolist()]
    expected = np.stack([state.numpy() for state in encoded(model, ngrams)])
    model.programs = compile_chimera(model, FloatLinear)
    assert model.programs is not None
    first = encoded(model, ngrams)
    np.testing.assert_allclose(np.stack(first), expected, rtol=1e-4, atol=1e-5)
    encoded(model, ngrams[:2])
    np.testing.assert_allclose(np.stack(first), expected, rtol=1e-4, atol=1e-5)  # none is reused


@pytest.mark.parametrize("vocabulary", [0, 5])
@pytest.mark.parametrize(
    ("kind", "tolerance"), [(FloatLinear, 1e-4), (Int8Linear, 0.05), (Int4Linear, 0.3)]
)
def test_medusa_heads_as_programs_guess_what_the_module_guesses(
    vocabulary: int, kind: type[BlockLinear], tolerance: float
) -> None:
    heads = small_medusa(MedusaConfig(heads=3, vocabulary=vocabulary)).ready("native")
    states = torch.randn(5, 1, HIDDEN)
    expected = [heads.guess(state, 4) for state in states]
    heads.programs = compile_medusa(heads, kind)
    assert heads.programs is not None
    for state, guesses in zip(states, expected, strict=True):
        assert_alike(heads.guess(state, 4), guesses, tolerance)


def test_what_has_no_program_stays_with_its_modules() -> None:
    for config in (MedusaConfig(heads=2, layers=2), MedusaConfig(heads=2, form="full")):
        assert compile_medusa(small_medusa(config), FloatLinear) is None
    many = small_chimera(ChimeraConfig(heads=2))
    many.config = replace(many.config, attention_heads=64, kv_heads=1)
    assert compile_chimera(many, FloatLinear) is None
    full, compact = (
        small_chimera(ChimeraConfig(heads=2, form=form)).ready("fastest", compile_chimera)
        for form in ("full", "compact")
    )
    assert isinstance(levels_of(full, FOUR, greens_of(full)), ModuleLevels)
    assert isinstance(levels_of(compact, FOUR, greens_of(compact)), ProgramLevels)


OPENED: list[tuple[Callable[[], HeadModule], Compile]] = [
    (lambda: small_medusa(MedusaConfig(heads=3)), compile_medusa),
    (lambda: small_chimera(ChimeraConfig(heads=2, rank=8)), compile_chimera),
    (lambda: small_eagle(EagleConfig(layers=(1, 2, 5))), compile_eagle),
]


@pytest.mark.parametrize(("make", "compiled"), OPENED, ids=["medusa", "chimera", "eagle"])
@pytest.mark.parametrize("worth_choosing", [0, 1 << 20])
def test_weights_are_held_once(
    make: Callable[[], HeadModule],
    compiled: Compile,
    worth_choosing: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choice, "WORTH_CHOOSING", worth_choosing)
    model = make()
    weights = [ref(part) for part in model.parameters()]
    model.ready("fastest", compiled)
    assert model.programs is not None and not [*model.children()]
    gc.collect()
    assert not any(weight() is not None for weight in weights)


@torch.no_grad()
def test_a_tree_of_medusa_takes_one_call_for_states_of_any_precision() -> None:
    heads = small_medusa(MedusaConfig(heads=3)).ready("native")
    heads.programs = compile_medusa(heads, FloatLinear)
    state = torch.randn(1, HIDDEN).bfloat16()
    assert isinstance(heads.programs, MedusaPrograms)
    found = heads.programs.tree(state, 6, 3)
    assert found is not None and found == heads.programs.tree(state.float(), 6, 3)
