"""What is kept from one call of `model.generate` to the next."""

from __future__ import annotations

import pytest
import torch
from tests.head_parts import saved_chimera, saved_medusa
from tests.tiny_models import VOCAB, new_model

from paceline.integrations import Pace, known_model
from paceline.models.fingerprint import loaded_fingerprint
from paceline.planning.cost_curve import CostCurve, CostPoint
from paceline.protocols import Target
from paceline.targets.toy import ToyTarget


@pytest.mark.parametrize(
    ("method", "budget", "known"),
    [("anpd", None, True), ("anpd", 3, False), ("plain", None, False)],
)
def test_where_trees_are_planned_it_is_known_what_passes_cost(
    method: str, budget: int | None, known: bool
) -> None:
    model, pace = new_model("llama"), Pace(method, budget=budget)
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8, 5]]), "max_new_tokens": 12}
    found = model.generate(**inputs, custom_generate=pace)
    assert torch.equal(found, model.generate(**inputs))
    learned = pace._known
    assert learned is not None and (learned.planner.curve is not None) == known
    model.generate(**inputs, custom_generate=pace)
    assert pace._known is learned
    new_model("llama").generate(**inputs, custom_generate=pace)
    assert pace._known is not learned


def test_a_model_without_files_is_measured_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a program makes a new `Pace` for every call."""
    measured: list[str] = []

    def measure(target: Target, *_: object) -> CostCurve:
        measured.append(target.describe().dtype)
        return CostCurve((CostPoint(1, 0, 1.0), CostPoint(64, 0, 1.5)))

    monkeypatch.setattr(known_model, "known_curve", measure)
    model = new_model("llama")
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8, 5]]), "max_new_tokens": 4}
    for dtype in (torch.float32, torch.float64):
        model.to(dtype)
        for _ in range(3):
            model.generate(**inputs, custom_generate=Pace("anpd"))
    assert measured == ["float32", "float64"]


@pytest.mark.parametrize("method", ["medusa", "chimera"])
def test_heads_are_opened_once_per_model(method: str) -> None:
    one, other = new_model("llama"), new_model("llama")
    save = saved_medusa if method == "medusa" else saved_chimera
    assert loaded_fingerprint(one) == loaded_fingerprint(other)
    parts = save(hidden=32, vocab=VOCAB, fingerprint=loaded_fingerprint(one))
    pace, opened = Pace(method, parts=str(parts), budget=8), []
    for model in (one, one, other):
        inputs = {"input_ids": torch.tensor([[5, 6, 7, 8, 5]]), "max_new_tokens": 12}
        found = model.generate(**inputs, custom_generate=pace)
        assert torch.equal(found, model.generate(**inputs))
        assert pace.stats[0].drafted > 0
        opened.append(next(iter(pace._known.host(ToyTarget()).shared.values())))
    assert opened[0] is opened[1]
    assert opened[1] is not opened[2]


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_drafter_is_lent_again_unless_its_text_was_cut_off(error: type[BaseException]) -> None:
    model, pace = new_model("llama"), Pace("llma", budget=3)
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8, 5]]), "max_new_tokens": 2}
    model.generate(**inputs, custom_generate=pace)
    known = pace._known
    assert known is not None
    with known.lend(pace._make) as first:
        pass
    with pytest.raises(error), known.lend(pace._make) as again:
        raise error
    with known.lend(pace._make) as other:
        pass
    assert again is first
    assert other is not first
