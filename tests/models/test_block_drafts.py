"""Draft models of a base whose weights stay in blocks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf_files import save_gguf
from tests.c_library import needs_library
from tests.saved_drafts import save_draft
from transformers import PreTrainedModel

import paceline
from paceline.errors import UsageError
from paceline.models import load_causal_lm
from paceline.models.draft_folder import DraftRecord, open_draft
from paceline.models.draft_model import ReducedHead, head_tensors, own_tensors
from paceline.models.load import LoadedModel
from paceline.targets.prepare import prepare
from paceline.targets.weights import is_quantised
from paceline.training.cutting import cut

SOME = torch.tensor([0, 3, 5, 17, 40, 41, 63])
IDS = torch.tensor([[3, 14, 15, 9, 26, 5]])


@torch.no_grad()
def scores(model: PreTrainedModel) -> torch.Tensor:
    logits: torch.Tensor = model(IDS).logits[0]
    return logits


def saved(folder: Path, base: LoadedModel, tokens: torch.Tensor | None) -> Path:
    """A draft of the base's last layer."""
    draft = cut(base.model, (1,), tokens)
    record = DraftRecord(base.fingerprint, "a test's", (1,), 0 if tokens is None else len(tokens))
    save_draft(folder, draft.config, own_tensors(draft, base.model), record, {})
    return folder


@needs_library
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
@pytest.mark.parametrize("own_head", [False, True])
@pytest.mark.parametrize("tokens", [None, SOME])
def test_a_draft_says_the_same_on_a_base_in_blocks(
    tmp_path: Path, family: str, own_head: bool, tokens: torch.Tensor | None
) -> None:
    file = save_gguf(tmp_path / "m.gguf", family, ("Q4_K", "Q8_0"), own_head=own_head)
    floats, blocks = (load_causal_lm(str(file), device="cpu", blocks=each) for each in (0, 1))
    folder = saved(tmp_path / "draft", floats, tokens)
    expected = scores(open_draft(folder, floats.model, floats.fingerprint))
    for prepared in (False, True):
        if prepared:
            prepare(blocks.model)
        draft = open_draft(folder, blocks.model, blocks.fingerprint)
        assert draft.get_input_embeddings() is blocks.model.get_input_embeddings()
        head = draft.get_output_embeddings()
        assert isinstance(head, ReducedHead) == (tokens is not None)
        # The base's head rounds its rows to 8 bits; one of the draft's own is in floats.
        error = float((scores(draft) - expected)[:, SOME].norm() / expected[:, SOME].norm())
        assert error < (1e-4 if tokens is not None else 0.05)
        done = prepare(draft, exact=False)
        assert done.linears >= 4
        said = scores(draft)
        assert float((said - expected)[:, SOME].norm() / expected[:, SOME].norm()) < 0.1


@pytest.mark.parametrize("own_head", [False, True])
def test_rows_of_a_reduced_head_are_those_of_the_floats(tmp_path: Path, own_head: bool) -> None:
    file = save_gguf(tmp_path / "m.gguf", own_head=own_head)
    floats, blocks = (
        head_tensors(load_causal_lm(str(file), device="cpu", blocks=each).model, SOME)
        for each in (False, True)
    )
    assert floats.keys() == blocks.keys()
    assert len(floats) == (2 if own_head else 1)
    assert all(torch.equal(floats[name], blocks[name]) for name in floats)


@needs_library
@pytest.mark.parametrize("method", ["plain", "anpd", "speculative"])
def test_texts_of_a_session_in_blocks(tmp_path: Path, method: str) -> None:
    file = save_gguf(tmp_path / "m.gguf", kinds=("Q8_0", "Q6_K"))
    floats = load_causal_lm(str(file), device="cpu")
    settings = {}
    if method == "speculative":
        settings["draft"] = str(saved(tmp_path / "draft", floats, None))
    session = paceline.load(str(file), method, device="cpu", measure=False, **settings)
    assert session.target.describe().weights == "blocks"
    prompt = session.encode("ABCABCAB")
    expected = floats.model.generate(
        torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=None
    )[0, len(prompt) :]
    found = session.generate("ABCABCAB", max_new_tokens=12, ignore_eos=True, budget=8)
    assert found.tokens == expected.tolist()


def test_a_draft_that_is_a_gguf_file(tmp_path: Path) -> None:
    file = save_gguf(tmp_path / "m.gguf")
    session = paceline.load(str(file), "speculative", device="cpu", measure=False, draft=str(file))
    assert session.generate("ABC", max_new_tokens=8, ignore_eos=True, budget=8).stats.drafted


@needs_library
def test_blocks_do_not_become_other_weights(tmp_path: Path) -> None:
    file = save_gguf(tmp_path / "m.gguf")
    model = load_causal_lm(str(file), device="cpu", blocks=True).model
    with pytest.raises(
        UsageError, match=r"converted to packed: load the model with weights='packed'"
    ):
        prepare(model, "packed")
    packed = paceline.load(str(file), "plain", device="cpu", weights="packed")
    assert packed.target.describe().weights == "packed"
    model = packed.target.model  # type: ignore[attr-defined]
    assert not is_quantised(model)


@needs_library
def test_a_copy_of_few_bits_drafts_for_blocks_of_more(tmp_path: Path) -> None:
    file = str(save_gguf(tmp_path / "m.gguf", kinds=("Q8_0",)))
    for _ in range(2):  # the second one opens no model
        plain = paceline.load(file, "plain", device="cpu", measure=False)
        fast = paceline.load(file, "speculative", device="cpu", measure=False, draft="self")
        for options in ({}, {"temperature": 0.8, "seed": 2}):
            request = {"max_new_tokens": 12, "ignore_eos": True, "budget": 8, **options}
            found = fast.generate("ABCABCAB", **request)
            assert found.tokens == plain.generate("ABCABCAB", **request).tokens
            assert found.stats.drafted
    small = str(save_gguf(tmp_path / "small.gguf", kinds=("Q4_K",)))
    with pytest.raises(UsageError, match="could not draft faster: load the model with weights="):
        paceline.load(small, "speculative", device="cpu", measure=False, draft="self")
