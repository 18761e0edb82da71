"""Cost curves on disk: found again under the same circumstances only, and never half written."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from tests.tiny_models import new_model, tiny_model

from paceline.errors import ModelError
from paceline.planning.cost_curve import CostCurve, CostPoint
from paceline.planning.curve_store import CurveKey, curve_key, curve_path, load_curve, save_curve
from paceline.targets.causal_lm import CausalLMTarget
from paceline.targets.toy import ToyTarget

CURVE = CostCurve((CostPoint(1, 128, 10.0), CostPoint(4, 128, 11.0)))
KEY = CurveKey(
    fingerprint="0123456789abcdef",
    dtype="bfloat16",
    weights="packed",
    device="NVIDIA Some/GPU (80 GB)",
    processor="Some Processor",
    threads=4,
    torch="2.6",
    paceline="0.1.0",
)


def test_what_was_saved_is_found_again(tmp_path: Path) -> None:
    assert load_curve(KEY, tmp_path) is None
    path = save_curve(KEY, CURVE, tmp_path)
    assert load_curve(KEY, tmp_path) == CURVE
    assert path == curve_path(KEY, tmp_path)
    assert path.parent == tmp_path / "curves"
    assert path.name.startswith("01234567-bfloat16-packed-nvidia-some-gpu-80-gb-4t-")
    later = CostCurve((CostPoint(1, 8, 1.0),))
    save_curve(KEY, later, tmp_path)
    assert load_curve(KEY, tmp_path) == later
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("name", "other"),
    [(name, "other") for name in vars(KEY) if name != "threads"] + [("threads", 5)],
)
def test_any_other_circumstance_has_a_curve_of_its_own(
    tmp_path: Path, name: str, other: object
) -> None:
    save_curve(KEY, CURVE, tmp_path)
    changed = replace(KEY, **{name: other})  # type: ignore[arg-type]
    assert curve_path(changed, tmp_path) != curve_path(KEY, tmp_path)
    assert load_curve(changed, tmp_path) is None


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        pytest.param(b"[" * 100_000, id="nested"),
        b'{"curve": []}',
        b'{"key": {}, "curve": []}',
        json.dumps({"key": vars(KEY)}).encode(),
        json.dumps({"key": vars(KEY), "curve": [{"width": 2}]}).encode(),
        json.dumps({"key": vars(replace(KEY, threads=9)), "curve": CURVE.to_records()}).encode(),
    ],
)
def test_a_damaged_file_counts_as_none(tmp_path: Path, damage: bytes) -> None:
    path = save_curve(KEY, CURVE, tmp_path)
    path.write_bytes(damage)
    assert load_curve(KEY, tmp_path) is None
    save_curve(KEY, CURVE, tmp_path)
    assert load_curve(KEY, tmp_path) == CURVE


def test_a_folder_in_its_place_counts_as_none(tmp_path: Path) -> None:
    curve_path(KEY, tmp_path).mkdir(parents=True)
    assert load_curve(KEY, tmp_path) is None


def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ModelError, match="cannot write to the cache folder"):
        save_curve(KEY, CURVE, tmp_path / "file")


def test_a_write_that_fails_leaves_the_earlier_curve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_curve(KEY, CURVE, tmp_path)

    def fail(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail)
        with pytest.raises(ModelError, match="No space left"):
            save_curve(KEY, CostCurve((CostPoint(1, 8, 1.0),)), tmp_path)
    assert load_curve(KEY, tmp_path) == CURVE
    assert list(path.parent.iterdir()) == [path]


def test_the_key_says_what_runs() -> None:
    key = curve_key(CausalLMTarget(tiny_model("llama")), "mark")
    assert (key.fingerprint, key.dtype, key.device) == ("mark", "float32", "cpu")
    assert key.threads == torch.get_num_threads()
    assert (key.torch, key.paceline) == (version("torch"), version("paceline"))
    half = CausalLMTarget(new_model("llama", dtype=torch.float64))
    assert curve_key(half, "mark") == replace(key, dtype="float64")
    assert curve_key(ToyTarget(), "mark") == key


def test_the_cache_folder_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    assert curve_path(KEY).parent == tmp_path / "curves"
    save_curve(KEY, CURVE)
    assert load_curve(KEY, tmp_path) == CURVE
