"""A training of prompt tokens from data to a folder; what holds for all trainings is in
`test_method_run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.methods_training import train

from paceline.drafters.prompt_tokens import PromptTokens
from paceline.errors import ModelError

PARTS = {"config.json", "model.safetensors", "acceptance.json", "training.json"}


@pytest.fixture(scope="module")
def whole(data: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole")
    train(data, out, "ppd", cache, points=6, learning_rate=0.05)
    return out


def test_it_leaves_parts_that_say_how_they_came_about(whole: Path) -> None:
    assert {path.name for path in whole.iterdir()} == PARTS | {".lock"}
    parts = PromptTokens.from_pretrained(whole)
    embeddings = parts.tensors["embeddings"]
    assert embeddings.shape == (2, 1, 32) and embeddings.dtype == torch.float32
    assert parts.acceptance is not None and parts.acceptance.distances == 2
    record: Any = parts.record
    losses = [entry["held_back_loss"] for entry in record["loss_curve"]]
    assert min(losses[1:]) < losses[0]
    assert 0 < record["evaluation"]["points"] <= record["texts"]["test"]["places"]
    # No more than six places in each of three windows.
    assert 0 < record["places"] <= 6 * 3 * record["steps"]


def test_a_second_stage_begins_where_the_first_ended(
    data: Path, cache: Path, whole: Path, tmp_path: Path
) -> None:
    first = PromptTokens.from_pretrained(whole)
    given = {"output_head": "small", "start": str(whole), "steps": 1, "learning_rate": 1e-4}
    parts = train(data, tmp_path, "ppd", cache, **given)
    assert set(parts.tensors) == {"embeddings", "head.weight", "head.bias"}
    found, expected = (each.tensors["embeddings"] for each in (parts, first))
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=0)
    record: Any = parts.record
    assert record["run"]["settings"]["start"] == first.fingerprint()


def test_folders_that_hold_no_parts_are_refused(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot read .*config.json"):
        PromptTokens.from_pretrained(tmp_path)
    for name in PARTS - {"acceptance.json"}:
        folder = tmp_path / name
        folder.mkdir()
        for path in whole.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        (folder / name).write_bytes(b"[1, 2")
        with pytest.raises(ModelError, match=name.replace(".", r"\.")):
            PromptTokens.from_pretrained(folder)


def test_parts_of_another_model_are_refused(whole: Path) -> None:
    parts = PromptTokens.from_pretrained(whole)
    parts.check_base(parts.base.fingerprint)
    with pytest.raises(ModelError, match=r"trained for toy .* not for this model \(other\)"):
        parts.check_base("other")
