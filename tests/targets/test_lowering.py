"""What a recording takes of memory while it becomes steps, and which rows steps run on."""

from __future__ import annotations

from weakref import WeakSet

import pytest
import torch
from tests.c_library import needs_library
from tests.tiny_models import new_model, some_prompt

from paceline.kernels.programs.early_selection import select_early
from paceline.kernels.programs.steps import Kind, Lowered, Op
from paceline.targets.engines import open_target
from paceline.targets.late_model import ModelFacts
from paceline.targets.one_call import compiled_pass, lowering
from paceline.targets.one_call.recording import Node, record
from paceline.targets.prepare import prepare
from paceline.tree import Tree

pytestmark = needs_library


def most_codes(layers: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Codes that are held at once, at most, while a model of so many layers is lowered."""
    model = new_model("llama", num_hidden_layers=layers)
    prepare(model)
    recording = record(model, ModelFacts.of(model).windows)
    made: WeakSet[torch.Tensor] = WeakSet()
    new_codes, take = lowering.new_codes, lowering._Lowering.take
    held = []

    def noted(value: int, shape: torch.Size, axis: int) -> torch.Tensor:
        codes = new_codes(value, shape, axis)
        made.add(codes)
        return codes

    def measured(self: lowering._Lowering, node: Node) -> None:
        take(self, node)
        held.append(sum(each.numel() for each in made))

    with monkeypatch.context() as patch:
        patch.setattr(lowering, "new_codes", noted)
        patch.setattr(lowering._Lowering, "take", measured)
        lowering.lower(model, recording)
    return max(held)


def test_codes_of_one_layer_are_gone_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    assert most_codes(8, monkeypatch) <= most_codes(2, monkeypatch)


def test_a_model_is_recorded_where_its_user_infers() -> None:
    model = new_model("qwen2")
    prepare(model)
    windows = ModelFacts.of(model).windows
    with torch.inference_mode():
        program = lowering.lower(model, record(model, windows))
    assert program.steps


def products_of_kept_rows(steps: Lowered) -> int:
    kinds = [step.out.kind for step in steps.steps if step.op == Op.PRODUCT and step.out]
    return kinds.count(Kind.KEPT)


@pytest.mark.parametrize(
    ("name", "products"), [("llama", 3), ("gpt2", 3), ("phi", 2), ("gemma3", 3)]
)
def test_a_last_layer_runs_on_the_rows_whose_scores_are_wanted(
    name: str, products: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention's output, the feed-forward's two products; what is kept of later states does not
    change, and no score does."""
    early = open_target(new_model(name))
    steps = early.steps
    assert steps is not None
    assert products_of_kept_rows(compiled_pass.kept_outputs(steps, ())) == 1
    assert (
        products_of_kept_rows(select_early(compiled_pass.kept_outputs(steps, ()))) == 1 + products
    )
    kept = compiled_pass.kept_outputs(steps, (0, 1))
    assert select_early(kept) is kept
    monkeypatch.setattr(compiled_pass, "select_early", lambda steps: steps)
    found = []
    for target in (early, open_target(new_model(name))):
        slots = [target.open(some_prompt(40)), target.open(some_prompt(9, seed=1))]
        trees = [Tree((5, 9, 11), (-1, -1, 0)), Tree((3,), (-1,))]
        scores = target.score({slots[0]: trees[0]}, {slots[1]: 5})
        scores |= target.score(dict(zip(slots, trees, strict=True)))
        found.append(torch.cat([scores[slot] for slot in slots]))
    assert torch.equal(*found)
