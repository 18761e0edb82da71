"""Draft models stored as updates to the layers of their base."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf_files import save_gguf
from tests.c_library import needs_library, without_library
from tests.saved_drafts import save_draft
from tests.tiny_models import new_model, some_prompt
from torch import nn
from transformers import FalconConfig, FalconForCausalLM, PreTrainedModel

from paceline.errors import ModelError, UsageError
from paceline.kernels import block_layers, choice
from paceline.kernels.native.calls import kernels
from paceline.kernels.token_table import has_rows
from paceline.models import load_causal_lm
from paceline.models.draft_folder import DraftRecord, open_draft
from paceline.models.draft_model import head_tensors, own_tensors
from paceline.models.low_rank import DOWN, UP, check_linear, weight_of, with_low_rank
from paceline.targets.prepare import prepare
from paceline.training.cutting import cut, mixed_precision

LAYERS, RANK = (0, 2), 3
SOME = torch.tensor([0, 3, 5, 17, 40, 41, 63])


@torch.no_grad()
def scores(model: PreTrainedModel) -> torch.Tensor:
    logits: torch.Tensor = model(torch.tensor([some_prompt(20)])).logits[0]
    return logits


@torch.no_grad()
def updated(base: PreTrainedModel, layers: tuple[int, ...] = LAYERS) -> PreTrainedModel:
    """A draft with updates that change what it says."""
    draft = cut(base, layers)
    with_low_rank(draft, RANK)
    noise = torch.Generator().manual_seed(5)
    for name, part in draft.named_parameters():
        if name.endswith(UP) or part.dim() == 1:
            part += 0.1 * torch.randn(part.shape, generator=noise)
    return draft


def kept(
    folder: Path,
    base: PreTrainedModel,
    draft: PreTrainedModel,
    mark: str = "mark",
    layers: tuple[int, ...] = LAYERS,
) -> Path:
    record = DraftRecord(mark, "a test's model", layers, rank=RANK)
    save_draft(folder, draft.config, stored(draft, base), record, {})
    return folder


def stored(draft: PreTrainedModel, base: PreTrainedModel) -> dict[str, torch.Tensor]:
    """A draft's own tensors without the weights that are the base's."""
    own = own_tensors(draft, base)
    whole = {f"{name.removesuffix(DOWN)}weight" for name in own if name.endswith(DOWN)}
    return {name: each for name, each in own.items() if name not in whole}


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma3"])
def test_updates_change_nothing_before_they_are_learned(architecture: str) -> None:
    base = new_model(architecture)
    plain, draft = cut(base, LAYERS), cut(base, LAYERS)
    fixed = with_low_rank(draft, RANK)
    assert torch.equal(scores(draft), scores(plain))
    assert len(fixed) == 7 * len(LAYERS) and fixed <= dict(draft.named_parameters()).keys()


@pytest.mark.parametrize(
    "weights", ["native", pytest.param("packed", marks=needs_library), "fused"]
)
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma3"])
def test_what_is_saved_is_what_is_opened(architecture: str, weights: str, tmp_path: Path) -> None:
    base = new_model(architecture)
    draft = updated(base)
    folder, expected = kept(tmp_path, base, draft), scores(draft)
    assert not torch.allclose(expected, scores(cut(base, LAYERS)), atol=1e-2)
    prepare(base, weights)
    opened = open_draft(folder, base, "mark")
    torch.testing.assert_close(scores(opened), expected, atol=1e-4, rtol=1e-4)
    assert type(opened) is type(base)
    prepare(opened, exact=False)


@pytest.mark.parametrize("weights", ["native", pytest.param("packed", marks=needs_library)])
@pytest.mark.parametrize("tied", [True, False])
def test_rows_of_the_output_head_are_the_bases(tied: bool, weights: str, tmp_path: Path) -> None:
    base = new_model("llama", tie_word_embeddings=tied)
    draft = cut(base, LAYERS, SOME)
    with_low_rank(draft, RANK)
    expected = scores(draft)
    tensors = stored(draft, base)
    rows = tensors.pop("draft.head.weight", None)
    assert (rows is None) == tied
    tensors = {k: v for k, v in tensors.items() if "draft." not in k} | head_tensors(
        base, SOME, True
    )
    record = DraftRecord("mark", "a test's model", LAYERS, len(SOME), rank=RANK)
    save_draft(tmp_path, draft.config, tensors, record, {})
    prepare(base, weights)
    found = scores(open_draft(tmp_path, base, "mark"))
    torch.testing.assert_close(found[:, SOME], expected[:, SOME], atol=1e-4, rtol=1e-4)


def test_a_packed_output_head_is_one_sentence(tmp_path: Path) -> None:
    base = new_model("llama", tie_word_embeddings=False)
    draft = cut(base, LAYERS, SOME)
    tensors = {k: v for k, v in own_tensors(draft, base).items() if k != "draft.head.weight"}
    save_draft(tmp_path, draft.config, tensors, DraftRecord("mark", "a", LAYERS, len(SOME)), {})
    base.lm_head.weight = None
    with pytest.raises(ModelError, match="reads the output head of its model, which was packed"):
        open_draft(tmp_path, base, "mark")


def test_without_the_library_rows_of_a_packed_head_are_those_of_the_embeddings(
    tmp_path: Path,
) -> None:
    base = new_model("llama", tie_word_embeddings=True)
    draft = cut(base, LAYERS, SOME)
    expected = scores(draft)
    record = DraftRecord("mark", "a test's model", LAYERS, len(SOME))
    save_draft(tmp_path, draft.config, own_tensors(draft, base), record, {})
    with without_library(choice), without_library(block_layers):
        prepare(base, "packed")
    assert not has_rows(base.get_output_embeddings())
    found = scores(open_draft(tmp_path, base, "mark"))
    assert torch.equal(found[:, SOME], expected[:, SOME])


@pytest.mark.parametrize("prepared", [False, True])
def test_a_base_in_bfloat16(prepared: bool, tmp_path: Path) -> None:
    base = new_model("llama").bfloat16()
    draft = updated(base)
    folder = kept(tmp_path, base, draft)
    with mixed_precision(base):
        expected = scores(draft).float()
    if prepared:
        prepare(base)  # its products compute in floats from here on
    opened = open_draft(folder, base, "mark")
    assert opened.dtype == base.dtype
    error = (scores(opened).float() - expected).norm() / expected.norm()
    assert float(error) < 0.05


@needs_library
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_base_in_blocks(family: str, tmp_path: Path) -> None:
    """The updates belong to the weights of the file, which stay readable after `prepare`."""
    file = save_gguf(tmp_path / "m.gguf", family, ("Q4_K", "Q8_0"))
    floats, blocks = (load_causal_lm(str(file), device="cpu", blocks=each) for each in (0, 1))
    draft = updated(floats.model, (1,))
    folder = kept(tmp_path / "draft", floats.model, draft, floats.fingerprint, (1,))
    ids = torch.tensor([[3, 14, 15, 9, 26, 5]])
    with torch.no_grad():
        expected = draft.base_model(ids).last_hidden_state
        for prepared in (False, True):
            if prepared:
                prepare(blocks.model)
            opened = open_draft(folder, blocks.model, blocks.fingerprint)
            found = opened.base_model(ids).last_hidden_state
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)


@needs_library
@pytest.mark.parametrize("weights", ["packed", "fused", "int8", "bfloat16"])
def test_weights_of_prepared_layers(weights: str) -> None:
    model = new_model("qwen2")
    before = {
        name: each.weight.detach().clone()
        for name, each in model.named_modules()
        if type(each) is nn.Linear
    }
    if weights == "bfloat16" and not kernels().bfloat16_products:
        pytest.skip("this processor has no products in bfloat16")
    prepare(model, weights)
    for name, weight in before.items():
        found = weight_of(model.get_submodule(name))
        assert found is not None and found.shape == weight.shape
        exact = weights in ("packed", "fused")
        torch.testing.assert_close(found, weight, atol=0 if exact else 0.02, rtol=0)


def test_weights_that_cannot_be_read_are_one_sentence(tmp_path: Path) -> None:
    base = new_model("llama")
    folder = kept(tmp_path, base, updated(base))
    base.get_submodule("model.layers.2.mlp.up_proj").weight = None  # type: ignore[assignment]
    with pytest.raises(ModelError, match=r"layers.1.mlp.up_proj, whose weight was packed"):
        open_draft(folder, base, "mark")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model.layers.0.mlp.up_proj.lora_B.weight": None}, "does not fit the layer"),
        ({"model.layers.0.mlp.up_proj.lora_A.weight": torch.zeros(3, 5)}, "does not fit the layer"),
        ({"model.layers.7.mlp.up_proj.lora_A.weight": torch.zeros(3, 5)}, "has no layer"),
        ({"model.norm.lora_A.weight": torch.zeros(3, 5)}, "has no layer"),
    ],
)
def test_a_damaged_update_is_one_sentence(
    change: dict[str, torch.Tensor | None], words: str, tmp_path: Path
) -> None:
    base = new_model("llama")
    draft = updated(base)
    changed = {**stored(draft, base), **change}
    tensors = {name: each for name, each in changed.items() if each is not None}
    record = DraftRecord("mark", "a test's model", LAYERS, rank=RANK)
    save_draft(tmp_path, draft.config, tensors, record, {})
    with pytest.raises(ModelError, match=words) as caught:
        open_draft(tmp_path, base, "mark")
    assert "\n" not in str(caught.value)


def test_layers_without_linear_layers_are_refused() -> None:
    base = new_model("gpt2")
    with pytest.raises(UsageError, match="leave out --rank"):
        with_low_rank(cut(base, LAYERS), RANK)


def test_layers_that_only_resemble_linear_ones_get_no_update() -> None:
    """Falcon has its own kind."""
    config = FalconConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    with pytest.raises(UsageError, match="no linear layers"):
        check_linear(FalconForCausalLM(config))
