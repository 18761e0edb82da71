"""torch's default dtype and device belong to the user's program: no buffer of ours may depend on
them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import paceline
from paceline.kernels.programs.rotary import Rotary
from tests.c_library import needs_library
from tests.models.gguf_files import save_gguf
from tests.tiny_models import new_model

pytestmark = needs_library

METHODS = ("plain", "anpd", "auto:-rest", "speculative:draft=self")


@pytest.fixture(params=[torch.bfloat16, torch.float64], ids=str)
def other(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """A dtype that is the default where a test makes it so."""
    yield request.param
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("method", METHODS)
def test_a_session_in_blocks(method: str, other: torch.dtype, tmp_path: Path) -> None:
    file = str(save_gguf(tmp_path / "m.gguf", kinds=("Q8_0",)))
    options = {"max_new_tokens": 24, "ignore_eos": True, "budget": 8}
    before = paceline.load(file, method, device="cpu", measure=False)
    expected = before.generate("ABCABCAB", **options).tokens
    torch.set_default_dtype(other)
    again = paceline.load(file, method, device="cpu", measure=False)
    for session in (before, again):
        assert session.generate("ABCABCAB", **options).tokens == expected


@pytest.mark.parametrize("method", METHODS)
def test_an_accelerated_model(method: str, other: torch.dtype) -> None:
    model = new_model("llama")
    ids = torch.tensor([[3, 14, 15, 9, 26, 5, 3, 14]])
    options = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected = model.generate(ids, **options)
    fast = paceline.accelerate(model, method, weights="packed")
    torch.set_default_dtype(other)
    assert torch.equal(fast.generate(ids, **options), expected)


def test_angles_of_positions(other: torch.dtype) -> None:
    places = torch.arange(400)[None]
    expected = Rotary(64, 10_000.0)(torch.ones(1, 1, 400, 64, dtype=torch.float32), places)
    torch.set_default_dtype(other)
    tables = Rotary(64, 10_000.0).extend_to(400)
    assert all(each.dtype == torch.float32 for each in tables)
    found = Rotary(64, 10_000.0)(torch.ones(1, 1, 400, 64, dtype=torch.float32), places)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("method", METHODS)
def test_a_session_with_another_default_device(method: str, tmp_path: Path) -> None:
    file = str(save_gguf(tmp_path / "m.gguf", kinds=("Q8_0",)))
    # So many that tables of positions grow.
    options = {"max_new_tokens": 270, "ignore_eos": True, "budget": 8}
    expected = paceline.load(file, method, measure=False).generate("ABCABCAB", **options).tokens
    session = paceline.load(file, method, measure=False)
    with torch.device("meta"):
        assert session.generate("ABCABCAB", **options).tokens == expected


@pytest.mark.parametrize("weights", ["native", "packed"])
@pytest.mark.parametrize("rows", [1, 2])
def test_an_accelerated_model_with_another_default_device(weights: str, rows: int) -> None:
    model = new_model("llama")
    ids = torch.tensor([[3, 14, 15, 9, 26, 5, 3, 14]] * rows)
    options = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected = model.generate(ids, **options)
    with torch.device("meta"):
        fast = paceline.accelerate(model, "anpd", weights=weights, budget=8)
        assert torch.equal(fast.generate(ids, **options), expected)


@pytest.mark.model
@pytest.mark.parametrize("method", ["eagle", "chimera"])
def test_shipped_parts_with_another_default_device(method: str) -> None:
    session = paceline.load("smollm2-135m", method, measure=False)
    options = {"max_new_tokens": 24, "ignore_eos": True, "budget": 8}
    prompt = "Why is the sky blue, and why is it red where the sun sets in the evening? " * 3
    with torch.device("meta"):
        found = session.generate(prompt, **options)
    assert found.stats.drafted and not found.error
    assert found.tokens == session.generate(prompt, **options).tokens


def written(method: str) -> paceline.Completion:
    session = paceline.load("smollm2-135m", method, measure=False)
    return session.generate("Why is the sky blue?", max_new_tokens=24, ignore_eos=True, budget=8)


@pytest.fixture(scope="module")
def in_float32() -> list[int]:
    return written("plain").tokens


@pytest.mark.model
# Trees of a size, so that PPD does not find its rows too expensive on a busy machine.
@pytest.mark.parametrize("method", ["eagle", "medusa", "chimera", "ppd:size=6", "auto"])
@pytest.mark.parametrize("other", [torch.bfloat16], indirect=True)
def test_shipped_parts(method: str, in_float32: list[int], other: torch.dtype) -> None:
    torch.set_default_dtype(other)
    completion = written(method)
    assert completion.tokens == in_float32 and completion.stats.drafted
