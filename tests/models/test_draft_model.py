"""Draft models: parts of a model, on what the model lends them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.c_library import needs_library
from tests.one_pass import one_pass
from tests.saved_drafts import save_draft
from tests.tiny_models import VOCAB, needs_kernels, new_model, some_prompt
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from paceline.drafters import make_drafter
from paceline.errors import ModelError, UsageError
from paceline.kernels.block_layers import Int4Linear, Int8Linear
from paceline.kernels.linear import FastLinear
from paceline.loop import Generation, decode
from paceline.models import load_causal_lm
from paceline.models.draft_folder import (
    DraftRecord,
    is_shared_draft,
    open_draft,
    read_draft_record,
)
from paceline.models.draft_model import ReducedHead, own_tensors
from paceline.sampling import Sampler
from paceline.stopping import Stopping
from paceline.targets.causal_lm import CausalLMTarget
from paceline.targets.model_pass import ModelPass
from paceline.targets.prepare import prepare
from paceline.targets.trials import differences
from paceline.targets.weights import weight_bytes
from paceline.training.cutting import cut
from paceline.tree import Tree

ARCHITECTURES = ["llama", "qwen2", "mistral", "gemma3", "gpt2"]
SOME = torch.tensor([0, 3, 5, 17, 40, 41, 63])
"""A reduced vocabulary."""


@torch.no_grad()
def scores(model: PreTrainedModel, length: int = 20) -> torch.Tensor:
    """[length, VOCAB]."""
    logits: torch.Tensor = model(torch.tensor([some_prompt(length)])).logits[0]
    return logits


def kept(
    folder: Path, base: PreTrainedModel, draft: PreTrainedModel, layers: tuple[int, ...] = (0, 2)
) -> Path:
    """Save a draft of a base that is called "mark"."""
    tensors = own_tensors(draft, base)
    vocabulary = len(tensors.get("draft.vocabulary", ()))
    record = DraftRecord("mark", "a test's model", layers, vocabulary)
    save_draft(folder, draft.config, tensors, record, {"steps": 1})
    return folder


def changed(draft: PreTrainedModel, base: PreTrainedModel) -> PreTrainedModel:
    """With other numbers where they are its own."""
    noise = torch.Generator().manual_seed(5)
    for name, tensor in own_tensors(draft, base).items():
        if not name.startswith("draft."):
            tensor += 0.1 * torch.randn(tensor.shape, generator=noise)
    return draft


def without(base: PreTrainedModel, layer: int) -> torch.Tensor:
    """What a model says when one of its layers hands on what it gets."""

    def hand_on(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        return (args[0], *output[1:]) if isinstance(output, tuple) else args[0]

    stack = getattr(base.base_model, "layers", None) or base.base_model.h
    hook = stack[layer].register_forward_hook(hand_on)
    found = scores(base)
    hook.remove()
    return found


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_draft_is_its_base_without_the_other_layers(architecture: str, tied: bool) -> None:
    base = new_model(architecture, tie_word_embeddings=tied)
    assert torch.equal(scores(cut(base, [0, 1, 2])), scores(base))
    draft = cut(base, [0, 2])
    assert torch.equal(scores(draft), without(base, 1))
    assert not torch.allclose(scores(draft), scores(base), atol=1e-2)
    assert draft.config.num_hidden_layers == 2 and base.config.num_hidden_layers == 3


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_reduced_vocabulary_scores_as_the_whole_one(architecture: str, tied: bool) -> None:
    base = new_model(architecture, tie_word_embeddings=tied)
    found, whole = scores(cut(base, [0, 1, 2], SOME)), scores(base)
    torch.testing.assert_close(found[:, SOME], whole[:, SOME], atol=1e-5, rtol=1e-5)
    others = [token for token in range(VOCAB) if token not in SOME.tolist()]
    assert found.shape == whole.shape and bool((found[:, others] == -math.inf).all())


def test_scores_that_are_capped_after_the_head() -> None:
    base = new_model("gemma3", final_logit_softcapping=30.0)
    found, whole = scores(cut(base, [0, 1, 2], SOME)), scores(base)
    torch.testing.assert_close(found[:, SOME], whole[:, SOME], atol=1e-4, rtol=1e-4)
    assert float(found.min()) == -30.0 and 4 not in found.argmax(dim=-1)


@needs_library
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("reduced", [True, False])
@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "gemma2"])
def test_what_is_saved_is_what_is_opened(
    architecture: str, reduced: bool, tied: bool, tmp_path: Path
) -> None:
    """Also on a base that gave its output head away to be packed, and was given other attention."""
    attention = "eager" if architecture == "gemma2" else "sdpa"
    base = new_model(architecture, attention, tie_word_embeddings=tied)
    draft = changed(cut(base, [0, 2], SOME if reduced else None), base)
    folder, expected = kept(tmp_path, base, draft), scores(draft)
    assert torch.equal(scores(open_draft(folder, base, "mark")), expected)
    prepare(base, "packed")
    opened = open_draft(folder, base, "mark")
    torch.testing.assert_close(scores(opened), expected, atol=1e-4, rtol=1e-4)
    assert opened.config.name_or_path == str(folder) and not opened.training


@pytest.mark.parametrize("tied", [True, False])
def test_the_folder_holds_the_layers_alone(tied: bool, tmp_path: Path) -> None:
    base = new_model("llama", tie_word_embeddings=tied)
    names = own_tensors(cut(base, [0, 2], SOME), base)
    head = set() if tied else {"draft.head.weight"}
    assert {name for name in names if not name.startswith("model.layers.")} == head | {
        "model.norm.weight",
        "draft.vocabulary",
    }
    assert sum(tensor.numel() for tensor in names.values()) < 0.8 * base.num_parameters()


@pytest.mark.parametrize("weights", ["native", "packed"])
@pytest.mark.parametrize("tied", [True, False])
def test_memory_is_shared(tied: bool, weights: str, tmp_path: Path) -> None:
    base = new_model("gpt2", tie_word_embeddings=tied)
    folder = kept(tmp_path, base, cut(base, [0, 2]))
    prepare(base, weights)
    draft = open_draft(folder, base, "mark")
    assert draft.get_input_embeddings() is base.get_input_embeddings()
    assert draft.transformer.wpe is base.transformer.wpe
    mine, theirs = draft.get_output_embeddings(), base.get_output_embeddings()
    if weights == "packed":
        assert isinstance(mine, FastLinear) and mine is theirs
    else:
        assert mine.weight.data_ptr() == theirs.weight.data_ptr()
    before = scores(base)
    prepare(draft, "packed")  # takes the weight out of its own module, and of no other
    assert torch.equal(scores(base), before)
    # Whoever is prepared last, both go on.
    if weights == "native":
        prepare(base, "packed")
        torch.testing.assert_close(scores(base), before, atol=1e-4, rtol=1e-4)
        scores(draft)


def test_copies_are_trained_and_not_the_base() -> None:
    base = new_model("llama")
    before = scores(base)
    changed(cut(base, [0, 2]), base)
    assert torch.equal(scores(base), before)


@pytest.mark.parametrize("weights", ["native", "packed", "int8"])
@pytest.mark.parametrize("reduced", [True, False])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_target_drives_it_through_trees(architecture: str, reduced: bool, weights: str) -> None:
    needs_kernels(weights)
    base = new_model(architecture)
    draft = cut(base, [0, 2], SOME if reduced else None)
    expected = scores(draft, 12)
    target = CausalLMTarget(draft, preparation=prepare(draft, weights))  # with its self-check
    assert not [each for each in draft.modules() if type(each) is nn.Linear] or weights == "native"
    text = some_prompt(12)
    tree = Tree((text[9], 3, text[10], text[11]), (-1, -1, 0, 2))
    rows = one_pass(target, text[:9], tree)
    assert rows.shape == (5, VOCAB)
    if weights != "int8":
        error, spread = differences(rows[[0, 1, 3, 4]], expected[8:])
        assert float((error / spread).max()) < 1e-4


def test_the_self_check_sees_what_a_reduced_head_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores of -inf must neither pass for an error nor hide one."""
    draft = cut(new_model("llama"), [0, 2], SOME)
    CausalLMTarget(draft)
    shown = ModelPass.run

    def off(self: ModelPass, *arguments: Any) -> torch.Tensor:
        return shown(self, *arguments) + 0.01 * torch.arange(VOCAB)

    monkeypatch.setattr(ModelPass, "run", off)
    with pytest.raises(ModelError, match="differs from its plain forward"):
        CausalLMTarget(draft)


def test_differences_leave_out_what_is_never_said() -> None:
    expected = torch.tensor([[1.0, -math.inf, 3.0], [0.0, 4.0, 2.0]])
    found = torch.tensor([[1.0, -math.inf, 4.0], [0.0, 4.0, -math.inf]])
    error, spread = differences(found, expected)
    assert error.tolist() == [1.0, math.inf]
    torch.testing.assert_close(spread, torch.tensor([math.sqrt(2), math.sqrt(8)]))
    assert float(differences(expected.nan_to_num(neginf=0.0), expected)[0][0]) == math.inf


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(
    "warp", [{}, {"top_k": 20}, {"top_p": 0.9}, {"min_p": 0.1}, {"repetition_penalty": 1.3}]
)
def test_any_sampler_draws_from_a_reduced_vocabulary(
    temperature: float, warp: dict[str, Any]
) -> None:
    target = CausalLMTarget(cut(new_model("llama"), [0, 2], SOME), check=False)
    sampler = Sampler(seed=3, temperature=temperature, **warp)
    text = Generation(some_prompt(9), make_drafter("anpd"), Stopping(20), sampler)
    for _ in decode(target, [text]):
        pass
    assert len(text.output) == 20 and set(text.output) <= set(SOME.tolist())


def test_a_reduced_head_costs_its_rows_alone() -> None:
    base = new_model("llama", vocab_size=1024, tie_word_embeddings=True)
    whole, reduced = cut(base, [0]), cut(base, [0], SOME)
    for draft in (whole, reduced):
        prepare(draft, "packed")
    head = reduced.get_output_embeddings()
    assert isinstance(head, ReducedHead) and isinstance(head.rows, FastLinear)
    panel = 16  # of outputs, of which the last one may be filled up
    saved = weight_bytes(whole) - weight_bytes(reduced)
    assert saved in ((1024 - len(SOME)) * 32 * 4, (1024 - panel) * 32 * 4)


def test_an_output_head_is_never_in_four_bits() -> None:
    needs_kernels("int8")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 256}
    tokens = torch.arange(0, 256, 2)
    draft = cut(new_model("llama", **sizes), [0, 2], tokens)
    prepare(draft, "int4")
    head = draft.get_output_embeddings()
    assert isinstance(head, ReducedHead) and isinstance(head.rows, Int8Linear)
    assert any(isinstance(each, Int4Linear) for each in draft.modules())


def test_layers_that_are_not_there_are_refused() -> None:
    base = new_model("llama")
    for layers in ([], [1, 0], [1, 1]):
        with pytest.raises(UsageError, match="ascending and all different"):
            cut(base, layers)
    for layers in ([0, 3], [-1, 2]):
        with pytest.raises(UsageError, match="has the layers 0 to 2, got"):
            cut(base, layers)


def test_layers_that_depend_on_their_place_are_refused() -> None:
    base = new_model("gpt2", scale_attn_by_inverse_layer_idx=True)
    cut(base, [0, 1])  # where they are what they were
    with pytest.raises(ModelError, match="GPT2LMHeadModel depend on their position"):
        cut(base, [0, 2])
    # The second layer has no experts where every other one has them.
    base = new_model("qwen3_moe", mlp_only_layers=[1])
    with pytest.raises(ModelError, match="Qwen3MoeForCausalLM"):
        cut(base, [1, 2])


def test_an_ordinary_folder_is_an_ordinary_model(tmp_path: Path) -> None:
    base = new_model("llama", tie_word_embeddings=True)
    draft = changed(cut(base, [0, 2]), base)
    record = DraftRecord("mark", "a test's model", (0, 2), shared=False)
    whole = {k: v for k, v in draft.state_dict().items() if k != "lm_head.weight"}
    save_draft(tmp_path, draft.config, whole, record, {})
    assert not is_shared_draft(tmp_path) and not is_shared_draft(tmp_path / "missing")
    assert torch.equal(scores(AutoModelForCausalLM.from_pretrained(tmp_path)), scores(draft))
    with pytest.raises(ModelError, match="does not need a base"):
        open_draft(tmp_path, base, "mark")


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, PreTrainedModel]:
    base = new_model("llama", tie_word_embeddings=True)
    return kept(tmp_path / "draft", base, cut(base, [0, 2], SOME)), base


def test_another_base_is_refused(saved: tuple[Path, PreTrainedModel]) -> None:
    folder, base = saved
    assert is_shared_draft(folder) and read_draft_record(folder).layers == (0, 2)
    with pytest.raises(ModelError, match="without embeddings of its own: name it as the draft"):
        load_causal_lm(str(folder))
    for mark in ("other", ""):
        with pytest.raises(
            ModelError, match=r"belongs to a test's model \(mark\), not to"
        ) as caught:
            open_draft(folder, base, mark)
        assert "\n" not in str(caught.value)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "draft.json"])
@pytest.mark.parametrize("harm", [cut_short, flipped, Path.unlink])
def test_damaged_files_are_named(saved: tuple[Path, PreTrainedModel], name: str, harm: Any) -> None:
    folder, base = saved
    if harm is flipped and name != "model.safetensors":
        (folder / name).write_text('{"format": 1, "model_type": "gpt2"}')
    else:
        harm(folder / name)
    with pytest.raises(ModelError, match=name.replace(".", r"\.")) as caught:
        open_draft(folder, base, "mark")
    assert "\n" not in str(caught.value)


def test_weights_that_do_not_fit_are_refused(saved: tuple[Path, PreTrainedModel]) -> None:
    folder, base = saved
    config = folder / "config.json"
    for before, after in (('"num_hidden_layers": 2', '"num_hidden_layers": 3'), ("48", "47")):
        text = config.read_text()
        assert before in text
        config.write_text(text.replace(before, after))
        with pytest.raises(ModelError, match="do not fit its layers") as caught:
            open_draft(folder, base, "mark")
        assert "\n" not in str(caught.value)
        config.write_text(text)
