"""Models in bfloat16 on processors that multiply such numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tests.tiny_models import new_model, some_prompt

from paceline.errors import UsageError
from paceline.kernels.native.calls import kernels, unavailable
from paceline.kernels.token_table import head_reads_table
from paceline.records import Path
from paceline.targets.causal_lm import CausalLMTarget
from paceline.targets.engines import open_target
from paceline.targets.prepare import prepare
from paceline.tree import EMPTY, Tree

pytestmark = pytest.mark.skipif(
    bool(unavailable()) or not kernels().bfloat16_products,
    reason=unavailable() or "this processor has no products in bfloat16",
)

TREE = Tree((5, 9, 11, 3, 7), (-1, -1, 0, 2, 1))


@pytest.fixture
def without() -> Iterator[None]:
    """Of the processor's instructions those for bfloat16 are not used."""
    kernels().use("portable")
    yield
    kernels().use(kernels().tiers[0])


def opened(weights: str, **changes: object) -> CausalLMTarget:
    model = new_model("llama", dtype=torch.bfloat16, **changes)  # type: ignore[arg-type]
    target = open_target(model, weights=weights)
    assert target.describe().report["own_forward"] == ""
    return target


def scores(target: CausalLMTarget) -> torch.Tensor:
    """Of a tree, and after two of its tokens."""
    slot = target.open(some_prompt(40))
    tree = target.score({slot: TREE})[slot]
    target.commit({slot: Path((0, 2), (5, 11, 2))})
    return torch.cat([tree, target.score({slot: EMPTY})[slot]])


def test_rows_are_rounded_where_nobody_asks_for_more() -> None:
    usual, exact = opened("auto"), opened("packed")
    assert usual.preparation.weights == "bfloat16" and exact.preparation.weights == "packed"
    assert usual.describe().report["preparation"]["weights"] == "bfloat16"
    found, wanted = scores(usual), scores(exact)
    assert not torch.equal(found, wanted)
    assert float((found - wanted).norm() / wanted.norm()) < 5e-2


def test_a_branch_has_the_bits_of_a_chain() -> None:
    target = opened("auto")
    tree = scores(target)[:6]
    slot = target.open([*some_prompt(40), 5, 11])
    assert torch.equal(target.score({slot: EMPTY})[slot][0], tree[3])


def test_head_and_table_are_one() -> None:
    model = new_model("llama", dtype=torch.bfloat16, tie_word_embeddings=True)
    prepare(model)
    assert head_reads_table(model)
    assert not list(filter(torch.Tensor.numel, model.parameters()))


def test_a_model_in_float32_is_rounded_on_request_alone() -> None:
    assert prepare(new_model("llama")).weights == "packed"
    assert prepare(new_model("llama"), "bfloat16").weights == "bfloat16"


@pytest.mark.usefixtures("without")
def test_without_the_instructions_it_is_float32_or_refused() -> None:
    assert prepare(new_model("llama", dtype=torch.bfloat16)).weights == "packed"
    with pytest.raises(UsageError, match="no products in bfloat16"):
        prepare(new_model("llama", dtype=torch.bfloat16), "bfloat16")
