"""Trainings that start from the parts of an earlier one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.training.methods_training import OPTIONS, train
from tests.training.shared import MODEL, make, prompt_file

from paceline.drafters import parts
from paceline.drafters.eight_bits import in_floats
from paceline.errors import ModelError, UsageError
from paceline.json_files import read_json
from paceline.training.method import first_parts, method_of
from paceline.training.methods import TRAINED
from paceline.training.settings import PACKAGED

STILL = {"steps": 1, "learning_rate": 1e-5}  # a step that changes next to nothing


@pytest.fixture(scope="module")
def trained(data: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of finished trainings by method."""
    root = tmp_path_factory.mktemp("trained")
    for method, options in OPTIONS.items():
        train(data, root / method, method, cache / method, **options)
    return {method: root / method for method in OPTIONS}


@pytest.mark.parametrize("method", ["eagle", "ppd"])
def test_weights_of_something_else_are_not_overwritten(
    data: Path, cache: Path, tmp_path: Path, method: str
) -> None:
    names = {"model.safetensors", "checkpoint-best.safetensors"}
    for name in names:
        (tmp_path / name).write_text("mine")
    with pytest.raises(ModelError, match="holds something else: choose another folder"):
        train(data, tmp_path, method, cache / method, **OPTIONS[method])
    assert {each.name for each in tmp_path.iterdir()} - {".lock"} == names


@pytest.mark.parametrize("method", ["eagle", "draft"])
def test_parts_that_could_not_all_be_written_are_written_again(
    data: Path, cache: Path, trained: dict[str, Path], tmp_path: Path, method: str
) -> None:
    """Also if the training was shorter than the steps between checkpoints."""
    settings = {**OPTIONS[method], "checkpoint_every": 100}
    in_the_way = tmp_path / "training.json"
    in_the_way.mkdir()
    with pytest.raises(ModelError, match="cannot write"):
        train(data, tmp_path, method, cache / method, **settings)
    (checkpoint,) = tmp_path.glob("checkpoint-*.safetensors")
    assert {name.split("/")[0] for name in load_file(checkpoint)} == {"now", "best"}
    in_the_way.rmdir()
    train(data, tmp_path, method, cache / method, **settings)
    weights = "model.safetensors"
    assert (tmp_path / weights).read_bytes() == (trained[method] / weights).read_bytes()


def test_every_method_is_tried() -> None:
    assert set(OPTIONS) == set(TRAINED)


@pytest.mark.parametrize("method", OPTIONS)
def test_it_goes_on_from_what_the_folder_holds(
    data: Path, cache: Path, trained: dict[str, Path], tmp_path: Path, method: str
) -> None:
    first = in_floats(load_file(trained[method] / "model.safetensors"))
    options = {**OPTIONS[method], "save_dtype": "float32", **STILL}
    parts = train(
        data, tmp_path / "on", method, cache / method, start=str(trained[method]), **options
    )
    anew = train(data, tmp_path / "anew", method, cache / method, **options)
    moved = 0.0
    for name, tensor in parts.tensors.items():
        torch.testing.assert_close(tensor.float(), first[name].float(), atol=2e-3, rtol=0)
        moved = max(moved, float((tensor - anew.tensors[name]).float().abs().max()))
    assert moved > 0.01
    record: Any = parts.record
    begun = method_of(TRAINED[method]()).Parts.found_in(trained[method])
    assert begun is not None
    assert record["run"]["settings"]["start"] == begun.fingerprint()
    assert record["started_from"]["licences"] == begun.record["licences"]


def test_what_it_starts_from_is_kept_where_nothing_is_better(
    data: Path, cache: Path, trained: dict[str, Path], tmp_path: Path
) -> None:
    first = load_file(trained["medusa"] / "model.safetensors")
    worse = {"steps": 4, "learning_rate": 3.0, "warm_up": 0.0}
    start = str(trained["medusa"])
    parts = train(data, tmp_path, "medusa", cache / "medusa", start=start, **worse)
    assert all(torch.equal(tensor, first[name]) for name, tensor in parts.tensors.items())
    assert [entry["step"] for entry in parts.record["loss_curve"]] == [4]


def test_the_vocabulary_is_that_of_the_first_parts(
    trained: dict[str, Path], tmp_path: Path
) -> None:
    make(tmp_path / "other", prompt_file(tmp_path, 30), max_new_tokens=40)
    other = tmp_path / "other"
    start = str(trained["medusa"])
    parts = train(other, tmp_path / "on", "medusa", tmp_path / "states", start=start, **STILL)
    anew = train(other, tmp_path / "anew", "medusa", tmp_path / "states", **STILL)
    known = load_file(trained["medusa"] / "model.safetensors")["token_ids"]
    assert torch.equal(parts.tensors["token_ids"], known)
    assert not torch.equal(anew.tensors["token_ids"], known)


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ("medusa", {"heads": 3}, "have heads 2, not 3: train with the options"),
        ("ppd", {"epts": 3}, "have epts 1, not 3: train with the options"),
        ("ppd", {"mask": "decoder"}, "have mask 'ensemble', not 'decoder'"),
        ("medusa", {"vocabulary": 50}, "guess 40 tokens, not 50: train with --vocabulary 40"),
        ("eagle", {"vocabulary": 0}, "guess 40 tokens, not all: train with --vocabulary 40"),
        ("medusa", {"test": 0.3}, "are to be held back: train with --test"),
        ("medusa", {"validation": 0.5}, "are to be held back: train with --test"),
        ("eagle", {"features": "last"}, "have features 'three', not 'last': train with the"),
        ("eagle", {"block": "random", "intermediate": 64}, "is 48 wide, not 64: train with"),
        ("draft", {"layers": "0,1"}, "train with --layers 0,2 --rank 0"),
        ("draft", {"rank": 4}, "train with --layers 0,2 --rank 0"),
        ("medusa", {"start": "nowhere"}, "nowhere holds nothing that 'paceline train medusa' has"),
        ("draft", {"start": PACKAGED}, "no parts of 'draft' for this model come with paceline"),
        ("eagle", {"start": PACKAGED}, "no parts of 'eagle' for this model come with paceline"),
    ],
)
def test_what_does_not_fit_is_one_sentence(
    data: Path,
    cache: Path,
    trained: dict[str, Path],
    tmp_path: Path,
    method: str,
    changes: dict[str, Any],
    message: str,
) -> None:
    given = {**OPTIONS[method], "start": str(trained[method]), **changes}
    with pytest.raises(UsageError, match=message):
        train(data, tmp_path, method, cache / method, **given)


@pytest.mark.parametrize("method", OPTIONS)
def test_parts_of_another_model_are_refused(trained: dict[str, Path], method: str) -> None:
    with pytest.raises(ModelError, match=r"not (for|to) this model"):
        first_parts(TRAINED[method](start=str(trained[method])), "other")


@pytest.mark.parametrize("method", OPTIONS)
def test_shipped_parts_are_found_by_their_base(
    trained: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(parts, "files", lambda package: tmp_path)
    assert parts.shipped_for(method, MODEL) is None
    place = tmp_path / "data" / method / "a-model"
    shutil.copytree(trained[method], place)
    assert parts.shipped_for(method, MODEL) == place
    assert parts.shipped_for(method, "other") is None


@pytest.mark.parametrize("method", OPTIONS)
def test_packaged_parts_are_found(method: str) -> None:
    fingerprint = "b179c9523d0e6a0f98a330c7562b6827"
    folder = parts.shipped_for(method, fingerprint)
    assert folder is not None
    given = read_json(folder / "training.json")["run"]["settings"]
    found = first_parts(TRAINED[method](**{**given, "start": PACKAGED}), fingerprint)
    assert found is not None and found.fingerprint()
