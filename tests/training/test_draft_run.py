"""A training of a draft model from data to a folder: what it leaves, and that nothing stops it for
good."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from tests.tiny_models import some_prompt
from tests.training.drafts import CONFIG, RECIPE, base_model, train
from tests.training.killing import killed_at
from tests.training.shared import MODEL
from tests.training.trained import make_data
from transformers import AutoModelForCausalLM

from paceline.errors import ModelError, UsageError
from paceline.models.draft_folder import is_shared_draft, open_draft, read_draft_record
from paceline.training import run as training_run
from paceline.training.checkpoint import save_checkpoint
from paceline.training.draft import run as draft_run

PARTS = {"config.json", "model.safetensors", "draft.json", "training.json"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("answers"))


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole")
    train(data, out)
    return out


def lasting(folder: Path) -> dict[str, object]:
    """What must be the same, whatever happened on the way: not the time it took."""
    record = json.loads((folder / "training.json").read_text())
    del record["seconds"], record["speed"]
    files = {name: (folder / name).read_bytes() for name in PARTS - {"training.json"}}
    return {**files, "record": record}


def test_it_leaves_a_draft_that_says_how_it_came_about(whole: Path) -> None:
    assert {path.name for path in whole.iterdir()} == PARTS | {".lock"}
    record = read_draft_record(whole)
    assert (record.base, record.name, record.layers) == (MODEL, "toy", (0, 2))
    assert record.vocabulary == 40 and record.shared
    training = json.loads((whole / "training.json").read_text())
    assert training["steps"] == RECIPE["steps"]
    assert [entry["step"] for entry in training["loss_curve"]] == [4, 8, 12]
    assert training["loss_curve"][-1]["held_back_loss"] < training["loss_curve"][0]["loss"]
    assert training["licences"] == {"unknown": 24}
    assert training["run"]["data"]["run"]["model"] == MODEL
    evaluation, sizes = training["evaluation"], training["parameters"]
    assert evaluation["places"] > 0 and evaluation["top5"] >= evaluation["top1"]
    assert 1 <= evaluation["acceptance_length"]["4"] <= 5
    assert sizes["own"] == record.parameters
    assert sizes["read_by_a_pass"] == sizes["own"] + 40 * 32
    # Half precision, and for this base, whose head is not its embedding, 40 rows of that.
    assert training["bytes"] == 2 * (sizes["own"] + 40 * 32) + 4 * 40


def test_it_has_learned(data: Path, whole: Path, tmp_path: Path) -> None:
    """The draft in the folder is the one that was measured, and closer to its base than before."""
    base = base_model()
    trained = open_draft(whole, base, MODEL)
    text = torch.tensor([some_prompt(30)])
    logits = trained(text).logits
    assert logits.shape == base(text).logits.shape
    assert int((logits[0, 0] > -torch.inf).sum()) == 40
    curve = json.loads((whole / "training.json").read_text())["loss_curve"]
    train(data, tmp_path, steps=1, learning_rate=1e-9, evaluate_every=1)
    (first,) = json.loads((tmp_path / "training.json").read_text())["loss_curve"]
    assert curve[-1]["held_back_loss"] < first["held_back_loss"]


def test_a_checkpoint_is_gone_on_with(
    data: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after every checkpoint in turn; what the base said is kept, or asked again."""
    saves = 0

    def save_and_stop(*arguments: object) -> None:
        nonlocal saves
        saves += 1
        save_checkpoint(*arguments)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(training_run, "save_checkpoint", save_and_stop)
    for _ in range(RECIPE["steps"] // RECIPE["checkpoint_every"]):
        with pytest.raises(KeyboardInterrupt):
            train(data, tmp_path)
        kept = sorted(tmp_path.glob("teacher-*"))
        kept[0].write_bytes(b"half")
        kept[1].unlink()
    train(data, tmp_path)
    assert saves == 6
    assert lasting(tmp_path) == lasting(whole)
    assert {path.name for path in tmp_path.iterdir()} == PARTS | {".lock"}


def test_killed_at_random_moments(data: Path, whole: Path, tmp_path: Path) -> None:
    """Behind the first checkpoint of a process, twice."""
    chance, out = random.Random(7), tmp_path / "killed"
    moments = [chance.randint(960, 2500) for _ in range(2)]
    assert killed_at(moments, train, data, out) == 2
    assert lasting(out) == lasting(whole)


def test_a_finished_folder_is_handed_back_and_never_overwritten(
    data: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = lasting(whole)
    monkeypatch.setattr(draft_run, "cut", None)  # nothing may be trained
    assert train(data, whole).record == read_draft_record(whole)
    with pytest.raises(UsageError, match=r"holds a draft model trained with another recipe"):
        train(data, whole, top=3)
    with pytest.raises(UsageError, match=r"another config"):
        train(data, whole, config={**CONFIG, "layers": (0, 1)})
    assert lasting(whole) == before


def test_another_training_does_not_go_on_with_a_checkpoint(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save_and_stop(*arguments: object) -> None:
        save_checkpoint(*arguments)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training_run, "save_checkpoint", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            train(data, tmp_path)
    with pytest.raises(UsageError, match=r"holds a checkpoint of a training with another config"):
        train(data, tmp_path, config={**CONFIG, "vocabulary": 50})
    tensors = next(tmp_path.glob("checkpoint-*"))
    tensors.write_bytes(tensors.read_bytes()[:-3])
    with pytest.raises(UsageError, match=rf"{tensors.name} is damaged"):
        train(data, tmp_path)


def test_data_of_another_model_is_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"made by the model toy-0123, not by other"):
        train(data, tmp_path, fingerprint="other")


def test_what_cannot_be_trained_is_one_sentence(data: Path, tmp_path: Path) -> None:
    for config, words in (
        ({"layers": (2, 0)}, "ascending"),
        ({"layers": (0, 3)}, "has the layers 0 to 2"),
        ({"vocabulary": 1000}, "a vocabulary of 1000 cannot be made"),
    ):
        with pytest.raises(UsageError, match=words) as caught:
            train(data, tmp_path, config=config)
        assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="train in bfloat16 or float32"):
        train(data, tmp_path, model=base_model(dtype=torch.float16))
    odd = base_model("gpt2", scale_attn_by_inverse_layer_idx=True)
    with pytest.raises(ModelError, match="depend on where they stand"):
        train(data, tmp_path, model=odd)


@pytest.mark.parametrize("tied", [True, False])
def test_a_draft_that_stands_alone(tied: bool, data: Path, tmp_path: Path) -> None:
    """By default of the first and the last layer."""
    model = base_model(tie_word_embeddings=tied)
    trained = train(data, tmp_path, config={"standalone": True}, model=model, steps=2)
    assert not is_shared_draft(tmp_path) and trained.record.layers == (0, 2)
    opened = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert opened.dtype == torch.float16 and type(opened) is type(model)
    assert opened.get_output_embeddings().weight.shape == (257, 32)
    torch.testing.assert_close(
        opened.get_input_embeddings().weight.float(),
        model.get_input_embeddings().weight,
        atol=1e-3,
        rtol=1e-3,
    )


def test_labels_instead_of_distributions(data: Path, tmp_path: Path) -> None:
    trained = train(data, tmp_path, loss="labels", prompt_weight=0.0, top=1, steps=4)
    assert trained.training["run"]["recipe"]["loss"] == "labels"
