"""A training of a draft model from data to a folder; what holds for all trainings is in
`test_method_run`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny_models import new_model, some_prompt
from tests.training.methods_training import SETTINGS, VOCAB, train
from tests.training.shared import MODEL
from torch import nn
from transformers import AutoModelForCausalLM

from paceline.errors import ModelError, UsageError
from paceline.models.draft_folder import is_shared_draft, open_draft, read_draft_record
from paceline.training import method_run
from paceline.training.cutting import cut

PARTS = {"config.json", "model.safetensors", "draft.json", "training.json"}
LAYERS = {"layers": "0,2"}


@pytest.fixture(scope="module")
def whole(data: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole")
    train(data, out, "draft", cache, **LAYERS)
    return out


def content(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in PARTS}


def test_it_leaves_a_draft_that_says_how_it_came_about(whole: Path) -> None:
    assert {path.name for path in whole.iterdir()} == PARTS | {".lock"}
    record = read_draft_record(whole)
    assert (record.base, record.name, record.layers) == (MODEL, "toy", (0, 2))
    assert record.vocabulary == 40 and record.shared
    training = json.loads((whole / "training.json").read_text())
    assert training["steps"] == SETTINGS["steps"]
    assert training["loss_curve"][-1]["held_back_loss"] < training["loss_curve"][0]["loss"]
    evaluation, sizes = training["evaluation"], training["parameters"]
    assert evaluation["points"] > 0 and 1 <= evaluation["tokens_per_pass"] <= 3
    assert sizes["own"] == record.parameters
    assert sizes["read_by_a_pass"] == sizes["own"] + 40 * 32
    # Half precision, and for this base, whose head is not its embedding, 40 rows of that.
    assert training["bytes"] == 2 * (sizes["own"] + 40 * 32) + 4 * 40


def test_the_draft_in_the_folder_is_the_one_that_was_measured(whole: Path) -> None:
    base = new_model("llama", vocab_size=VOCAB)
    trained = open_draft(whole, base, MODEL)
    text = torch.tensor([some_prompt(30)])
    logits = trained(text).logits
    assert logits.shape == base(text).logits.shape
    assert int((logits[0, 0] > -torch.inf).sum()) == 40


def test_updates_of_low_rank_are_small_and_decode(data: Path, cache: Path, tmp_path: Path) -> None:
    train(data, tmp_path, "draft", cache, **LAYERS, rank=2)
    record = read_draft_record(tmp_path)
    sizes = json.loads((tmp_path / "training.json").read_text())["parameters"]
    assert record.rank == 2 and sizes["own"] == record.parameters
    whole = cut(new_model("llama", vocab_size=VOCAB), (0, 2))
    layers = sum(each.numel() for name, each in whole.named_parameters() if "layers" in name)
    assert sizes["read_by_a_pass"] == layers + 32 + 40 * 32 > 3 * sizes["own"]
    trained = open_draft(tmp_path, new_model("llama", vocab_size=VOCAB), MODEL)
    assert int((trained(torch.tensor([some_prompt(30)])).logits[0, 0] > -torch.inf).sum()) == 40


def test_a_finished_folder_is_handed_back_and_never_overwritten(
    data: Path, cache: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content(whole)
    monkeypatch.setattr(method_run, "Trainer", None)  # nothing may be trained
    found: Any = train(data, whole, "draft", cache, **LAYERS)
    assert found.about == read_draft_record(whole)
    with pytest.raises(UsageError, match=r"draft model trained with another layers in its"):
        train(data, whole, "draft", cache, layers="0,1")
    assert content(whole) == before


def test_a_folder_of_something_else_is_not_overwritten(
    data: Path, cache: Path, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "checkpoint-500").mkdir()  # as other trainers name theirs
    with pytest.raises(ModelError, match="holds something else: choose another folder"):
        train(data, tmp_path, "draft", cache, **LAYERS)
    assert {each.name for each in tmp_path.iterdir()} == {"config.json", "checkpoint-500"}


def test_a_damaged_folder_is_refused(data: Path, cache: Path, whole: Path, tmp_path: Path) -> None:
    for name, written in content(whole).items():
        (tmp_path / name).write_bytes(written)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-3])
    with pytest.raises(ModelError, match=r"model.safetensors is damaged"):
        train(data, tmp_path, "draft", cache, **LAYERS)


def test_what_cannot_be_trained_is_one_sentence(data: Path, cache: Path, tmp_path: Path) -> None:
    for settings, words in (
        ({"layers": "2,0"}, "ascending"),
        ({"layers": "0,3"}, "has the layers 0 to 2"),
        ({"rank": -1}, "rank must be at least 0"),
        ({"rank": 2, "standalone": True, "vocabulary": 0}, "leave out --rank or --standalone"),
        ({"vocabulary": 1000}, "a vocabulary of 1000 cannot be made"),
    ):
        with pytest.raises(UsageError, match=words) as caught:
            train(data, tmp_path, "draft", cache, **settings)
        assert "\n" not in str(caught.value)
    odd = new_model("gpt2", vocab_size=VOCAB, scale_attn_by_inverse_layer_idx=True)
    with pytest.raises(ModelError, match="depend on their position"):
        train(data, tmp_path, "draft", tmp_path / "odd", model=odd)


@pytest.mark.parametrize(("tied", "own_head"), [(True, False), (False, False), (True, True)])
def test_a_draft_that_stands_alone(tied: bool, own_head: bool, data: Path, tmp_path: Path) -> None:
    """By default of the first and the last layer; with the model's own head, even if its
    configuration says that it is tied."""
    model = new_model("llama", vocab_size=VOCAB, tie_word_embeddings=tied)
    head = model.get_output_embeddings()
    if own_head:
        head.weight = nn.Parameter(head.weight.detach().flip(0))
    out, alone = tmp_path / "out", {"standalone": True, "vocabulary": 0, "steps": 2}
    found: Any = train(data, out, "draft", tmp_path / "states", model=model, **alone)
    assert not is_shared_draft(out) and found.about.layers == (0, 2)
    opened = AutoModelForCausalLM.from_pretrained(out)
    assert opened.dtype == torch.float16 and type(opened) is type(model)
    assert opened.get_output_embeddings().weight.shape == (257, 32)
    for found, expected in (
        (opened.get_input_embeddings(), model.get_input_embeddings()),
        (opened.get_output_embeddings(), head),
    ):
        torch.testing.assert_close(found.weight.float(), expected.weight, atol=1e-3, rtol=1e-3)
