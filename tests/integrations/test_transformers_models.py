"""What is done to a model between calls, what drafters find for it, and what stays of a call."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import ref

import pytest
import torch
from tests.c_library import needs_library
from tests.head_parts import saved_eagle, saved_medusa
from tests.tiny_models import VOCAB, new_model
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from paceline.drafters import parts
from paceline.errors import ModelError, UsageError
from paceline.integrations import Pace, accelerate, known_model, transformers
from paceline.integrations.known_model import hooks_of
from paceline.models.fingerprint import loaded_fingerprint
from paceline.planning.cost_curve import CostCurve, CostPoint
from paceline.targets.causal_lm import CausalLMTarget
from paceline.targets.hidden_states import Watcher

PROMPT = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6]
ROWS = torch.tensor([PROMPT, PROMPT[::-1]])


@pytest.fixture(autouse=True)
def curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models without a name have no stored curve, and measuring one takes longer than most tests."""
    known = CostCurve((CostPoint(1, 0, 1.0), CostPoint(64, 0, 1.5)))
    monkeypatch.setattr(known_model, "known_curve", lambda *_: known)


def check(model: PreTrainedModel, pace: Pace, inputs: torch.Tensor = ROWS[:1]) -> None:
    """The text is that of `generate`."""
    request = {"inputs": inputs, "max_new_tokens": 24}
    found = model.generate(**request, custom_generate=pace)
    assert torch.equal(found, model.generate(**request))


def at_the_end(module: nn.Module, given: Any, output: torch.Tensor) -> torch.Tensor:
    """Steers the last position alone, so that it matters where a pass ends."""
    output = output.clone()
    output[:, -1] += 3.0
    return output


def everywhere(module: nn.Module, given: Any, output: torch.Tensor) -> torch.Tensor:
    """Steers all positions alike."""
    return output + torch.linspace(-2, 2, output.shape[-1])


def replaced(layer: nn.Module) -> Callable[[], None]:
    own = layer.forward
    layer.forward = lambda *args, **more: at_the_end(layer, None, own(*args, **more))
    return lambda: delattr(layer, "forward")


@pytest.mark.parametrize(
    "change",
    [lambda layer: layer.register_forward_hook(at_the_end).remove, replaced],
    ids=["hook", "forward"],
)
def test_what_is_hooked_into_a_model_later_is_checked(
    change: Callable[[nn.Module], Callable[[], None]],
) -> None:
    model, pace = new_model("llama"), Pace("anpd", budget=8)
    check(model, pace)
    for _ in range(2):
        undo = change(model.model.layers[1])
        with pytest.raises(ModelError):
            check(model, pace)
        undo()
        check(model, pace)
    model.model.layers[1].register_forward_hook(everywhere)
    check(model, pace)


def test_no_two_hooks_are_taken_for_each_other() -> None:
    model, seen = new_model("llama"), []
    layer = model.model.layers[0]
    for _ in range(3):  # a function may get the place in memory of one that is gone
        handle = layer.register_forward_pre_hook(lambda *_: None)
        seen.append(hooks_of(model))
        assert hooks_of(model) == seen[-1]
        handle.remove()
        layer.forward = lambda *_: None
        seen.append(hooks_of(model))
        assert hooks_of(model) == seen[-1]
        del layer.forward
    assert len(set(seen)) == 6
    model.model.register_forward_hook(Watcher(print))
    assert hooks_of(model) == ()


def test_inputs_that_are_prepared_in_another_way_are_refused() -> None:
    """As by PEFT, which puts a soft prompt before the first token."""
    model, pace = new_model("llama"), Pace("anpd", budget=8)
    own = model.prepare_inputs_for_generation
    model.prepare_inputs_for_generation = lambda *args, **more: own(*args, **more)
    with pytest.raises(UsageError, match=r"was replaced, as PEFT does .* use the model.s own"):
        check(model, pace)
    model.prepare_inputs_for_generation = own  # as PEFT leaves it
    check(model, pace)


def shipped_for(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the package come with EAGLE parts for this model."""
    mark = loaded_fingerprint(model)
    assert mark
    folder = saved_eagle(hidden=32, vocab=VOCAB, fingerprint=mark)
    monkeypatch.setattr(
        parts,
        "shipped_for",
        lambda method, found: folder if (method, found) == ("eagle", mark) else None,
    )


@pytest.mark.parametrize("inputs", [ROWS[:1], ROWS], ids=["one", "two"])
def test_auto_asks_the_parts_that_exist_for_the_model(
    inputs: torch.Tensor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    new_model("llama").save_pretrained(tmp_path)
    model, other = AutoModelForCausalLM.from_pretrained(tmp_path).eval(), new_model("llama")
    shipped_for(model, monkeypatch)
    pace = Pace("auto:-speculative", budget=8)
    for each in (model, model, other):
        check(each, pace, inputs)
        sources = {name for stats in pace.stats for name in stats.sources}
        assert ("eagle" in sources) == (each is model)
    fast = accelerate(model, "auto:sources=anpd+eagle", budget=8)
    fast.generate(inputs, max_new_tokens=24)
    assert all("eagle" in stats.sources for stats in fast.stats)


def test_a_named_source_must_exist(tmp_path: Path) -> None:
    model = new_model("llama")
    for method, said in (
        ("auto:sources=anpd+eagle", "no EAGLE parts for this model"),
        (f"rest:datastore={tmp_path}", "tokenizer of this model is unknown"),
        ("rest", "tokenizer of this model is unknown"),
        ("auto:sources=anpd+rest", "tokenizer of this model is unknown"),
    ):
        with pytest.raises(ModelError, match=said):
            check(model, Pace(method, budget=8))
    check(model, Pace("sam", budget=8))


@needs_library
@pytest.mark.parametrize(
    ("method", "made"), [("auto", 0), ("auto:sources=anpd+speculative:draft=self", 1)]
)
def test_a_model_is_copied_once_if_that_was_asked_for(method: str, made: int) -> None:
    model, pace = new_model("llama"), Pace(method, budget=8)
    check(model, pace)
    assert pace._known is not None and pace._known.drafts is not None
    copies = [*pace._known.drafts._opened.values()]
    check(model, pace, ROWS)
    assert [*pace._known.drafts._opened.values()] == copies and len(copies) == made


@needs_library
def test_a_model_that_cannot_be_copied_says_so() -> None:
    model = new_model("llama")
    model.lock = Lock()
    check(model, Pace(budget=8))
    with pytest.raises(ModelError, match="this model cannot be copied"):
        check(model, Pace("speculative:draft=self", budget=8))


@pytest.mark.parametrize("inputs", [ROWS[:1], ROWS], ids=["one", "two"])
def test_a_model_that_was_checked_writes_under_autocast_too(inputs: torch.Tensor) -> None:
    """There, keys and values may have different formats."""
    model, pace = new_model("llama"), Pace("anpd", budget=8)
    check(model, pace, inputs)
    with torch.autocast("cpu", torch.bfloat16):
        found = model.generate(inputs, max_new_tokens=24, custom_generate=pace)
    assert found.shape == (len(inputs), ROWS.shape[1] + 24)
    check(model, pace, inputs)


def test_few_forms_of_a_model_are_remembered() -> None:
    model, pace = new_model("llama"), Pace("anpd", budget=8)
    for _ in range(20):
        hook = model.register_forward_hook(lambda *given: None)
        model.generate(ROWS[:1], max_new_tokens=2, custom_generate=pace)
        hook.remove()
    assert 0 < len(transformers._checked[model]) <= 16


@pytest.mark.parametrize("method", ["auto", "suffix", "llma"])
def test_a_model_is_not_kept_by_drafters_that_have_opened_nothing(method: str) -> None:
    model, pace = new_model("llama"), Pace(method, budget=8)
    check(model, pace)
    gone = ref(model)
    del model
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("make", [saved_eagle, saved_medusa])
def test_parts_do_not_keep_the_cache_of_a_call(
    make: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, opened = new_model("llama"), []

    def opening(*given: Any, **options: Any) -> CausalLMTarget:
        target = CausalLMTarget(*given, check=options["check"])
        opened.append(target)
        return target

    monkeypatch.setattr(transformers, "open_target", opening)
    folder = make(hidden=32, vocab=VOCAB, fingerprint=loaded_fingerprint(model))
    pace = Pace("eagle" if make is saved_eagle else "medusa", parts=str(folder), budget=8)
    for _ in range(2):
        caches: list[Any] = []

        def note(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            caches[:] = [ref(opened[0]._texts.cache), ref(opened[0]._texts.cache.tensors()[0][0])]  # noqa: B023
            return scores

        model.generate(ROWS[:1], max_new_tokens=9, custom_generate=pace, logits_processor=[note])
        opened.clear()
        gc.collect()
        assert len(caches) == 2 and all(cache() is None for cache in caches)
    check(model, pace)
