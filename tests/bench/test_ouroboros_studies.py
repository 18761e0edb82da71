"""The arithmetic of the studies of Ouroboros: simulated costs, crossings, orders of texts."""

from __future__ import annotations

import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.drafters import check_method
from paceline.prompts import PromptRecord
from paceline.targets.toy import ToyTarget
from tests.draft_hosts import toy_host

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """They import each other as the scripts that they are."""
    monkeypatch.setattr(sys, "path", [BENCHMARKS, *sys.path])


def test_every_contender_is_a_method() -> None:
    studies = import_module("ouroboros").STUDIES
    assert len(studies["sensitivity"].contenders) == 1 + 3**3
    for study in studies.values():
        assert study.contenders["plain"] == "plain"
        for method in study.contenders.values():
            check_method(method)


def test_orders_hold_every_text_once() -> None:
    found = import_module("ouroboros").orders(["a", "a", "a", "b", "b"], seed=1)
    assert found["consecutive"] == [0, 1, 2, 3, 4]
    assert found["interleaved"] == [0, 3, 1, 4, 2]
    assert sorted(found["shuffled"]) == [0, 1, 2, 3, 4] != found["shuffled"]


def test_contenders_are_counted_after_their_first_round_and_compared() -> None:
    runs = import_module("ouroboros_runs")
    target = ToyTarget()
    session: Any = SimpleNamespace(target=target, host=toy_host(target), eos_ids=())
    texts = [
        runs.Text(PromptRecord(str(place), ("",), task), [1 + place, 2, 3])
        for place, task in enumerate(["a", "a", "b"])
    ]
    methods = ["plain", "speculative:draft=near,length=3,branches=0"]
    contenders = [
        runs.Contender(method, method, session, texts, marks=(4, 30)) for method in methods
    ]
    assert runs.play_all(contenders, 20) == []
    for one in contenders:
        report = one.as_json()
        written = sum(map(len, one.outputs.values()))
        gained = sum(int(tokens) * rounds for tokens, rounds in report["gained"].items())
        assert report["tokens"] == gained <= written - len(texts)
        assert one.method != "plain" or gained == written - len(texts)
        assert set(report["tasks"]) == {"a", "b"}
        assert report["passes"] == Counter(report["widths"]).total()
        assert report["lengths"][30]["tokens"] == report["tokens"]  # all end before that
        assert report["lengths"][4]["tokens"] < report["tokens"]
    assert report["draft_passes"] > report["passes"] < report["tokens"]
    together = sum(one.as_json()["tokens"] for one in contenders)
    contenders[0].add(contenders[1])
    both = contenders[0].as_json()
    assert both["tokens"] == together == sum(tokens for tokens, _ in both["texts"].values())
    contenders[1].outputs["1"][5] += 1
    (found,) = runs.differences(contenders[1], contenders[0].outputs)
    assert (found["text"], found["position"]) == ("1", 5)
