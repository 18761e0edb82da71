"""A copy of the model as a source of `auto`: taken by default where there is one."""

from __future__ import annotations

import pytest
from tests.c_library import needs_library
from tests.helpers import naive_stream, play
from tests.tiny_models import needs_kernels, new_model, some_prompt

from paceline.drafters import Auto, Host, Plain, Speculative, auto_sources, make_drafter
from paceline.drafters.auto_sources import open_sources
from paceline.drafters.host import SELF, ModelChoice
from paceline.errors import ModelError
from paceline.generation import Generation
from paceline.models import memory
from paceline.opening.draft_models import DraftModels
from paceline.protocols import Drafter
from paceline.records import TextStart
from paceline.sampling import GREEDY, Sampler
from paceline.stopping import Stopping
from paceline.targets.causal_lm import CausalLMTarget
from paceline.targets.engines import open_target

pytestmark = needs_library


def opened(weights: str = "packed") -> tuple[CausalLMTarget, Host, list[ModelChoice]]:
    """A target, what its drafters get, and what they have opened so far."""
    target = open_target(new_model("llama"), weights=weights, check=False)
    drafts, asked = DraftModels(target.late_model, "", target=target), list[ModelChoice]()

    def open_draft(choice: ModelChoice) -> Host:
        asked.append(choice)
        return drafts(choice)

    return target, Host(target, open=open_draft), asked


@pytest.mark.parametrize("sampler", [GREEDY, Sampler(seed=3, temperature=0.8)], ids=str)
@pytest.mark.parametrize(
    "method",
    [
        "auto:-rest",
        "auto:sources=anpd+speculative:draft=self",
        "auto:sources=(llma+speculative:draft=self,inner=anpd,length=4)",
    ],
)
def test_texts_are_those_of_plain_decoding(method: str, sampler: Sampler) -> None:
    target, host, _ = opened()
    drafter = make_drafter(method, host)
    assert isinstance(drafter, Auto) and "speculative" in drafter.source_names
    asked = 0
    for seed in range(2):
        prompt = some_prompt(17, seed=seed)
        text = Generation(prompt, drafter, Stopping(24), sampler)
        (rounds,) = play(target, [text], 8)
        assert text.output == naive_stream(target, prompt, 24, sampler)
        asked += sum(round.sources[-1].asked for round in rounds)
    assert asked  # the first trial is free


def test_a_copy_is_what_drafts_by_default() -> None:
    _, host, asked = opened()
    found = open_sources("", "rest", host)
    assert list(found) == ["anpd", "suffix", "llma", "speculative"]
    assert isinstance(found["speculative"], Speculative)
    assert {choice.model for choice in asked} == {SELF}


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        ("", ["eagle"]),
        ("eagle medusa chimera", ["speculative"]),
        ("eagle medusa chimera speculative", ["speculative"]),
        ("eagle medusa chimera speculative:draft=self", ["speculative"]),
        ("eagle medusa chimera speculative:draft=self speculative", ["ppd"]),
        ("eagle medusa chimera speculative:draft=self speculative ppd", []),
    ],
)
def test_one_of_those_that_run_a_model_is_enough(
    missing: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(method: str, host: Host | None) -> Drafter | None:
        return None if method in missing.split() else Plain()

    monkeypatch.setattr(auto_sources, "_found", found)
    _, host, _ = opened()
    lookups = ["anpd", "suffix", "llma", "rest"]
    assert list(auto_sources.open_sources("", "", host)) == [*lookups, *expected]


def test_a_copy_is_worth_asking_from_the_first_round_on() -> None:
    _, host, _ = opened()
    copy, other = open_sources("", "rest", host)["speculative"], make_drafter("anpd", host)
    assert copy.promise > 1 and not other.promise


def test_without_a_smaller_copy_the_draft_model_of_the_package_is_looked_for() -> None:
    needs_kernels("int4")
    _, host, asked = opened("int4")
    assert "speculative" not in open_sources("", "", host)
    assert [choice.model for choice in asked] == [SELF, ""]  # there is none for this model
    assert "speculative" not in open_sources("", "", host)
    assert len(asked) == 2  # which is found out once


def test_memory_is_asked_before_a_copy_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 1000)
    _, host, _ = opened()
    assert "speculative" not in open_sources("", "", host)
    with pytest.raises(ModelError, match="a copy of this model with int4 weights needs about"):
        make_drafter("auto:sources=anpd+speculative:draft=self", host)


def test_a_source_that_is_named_has_no_alternatives() -> None:
    _, host, asked = opened()
    with pytest.raises(ModelError, match="paceline ships no draft model for this model"):
        open_sources("anpd+speculative", "", host)
    assert SELF not in {choice.model for choice in asked}


def test_ouroboros_waits_for_what_its_draft_model_takes_over() -> None:
    _, host, _ = opened()
    one, other = (make_drafter(f"{name}:draft=self", host) for name in ("speculative", "ouroboros"))
    assert other.promise == one.promise > 0
    for drafter in (one, other):
        drafter.start(TextStart([5, 6, 7]))
    assert one.waits() and other.waits()
