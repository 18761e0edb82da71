"""What comes with the package, on the model that it was made for: plain decoding's text, in fewer
passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.c_library import needs_library

import paceline
from paceline.drafters import make_drafter
from paceline.drafters.parts import shipped, shipped_chain
from paceline.models import ModelStore, load_causal_lm
from paceline.opening import prepared_models
from paceline.prompts import demo_prompts
from paceline.session import Completion, Session

pytestmark = pytest.mark.model

# Fixed trees: planned ones may rest on a machine where rows are costly.
OPTIONS = {"max_new_tokens": 14, "budget": 12}


@pytest.fixture(scope="module")
def plain() -> Session:
    return paceline.load("smollm2-135m", "plain")


TURNS = [prompt.turns[0] for prompt in demo_prompts()[:2]]


@pytest.fixture(scope="module")
def expected(plain: Session) -> dict[float, list[Completion]]:
    """What plain decoding says to the prompts, by temperature."""
    return {
        0.0: [plain.chat(turn, **OPTIONS) for turn in TURNS],
        0.8: [plain.chat(TURNS[0], temperature=0.8, seed=5, **OPTIONS)],
    }


@pytest.mark.parametrize(
    "method",
    ["medusa", "chimera", "eagle", "speculative", "ppd:size=8", "auto:sources=anpd+eagle+ppd"],
)
def test_parts_guess_right_and_change_no_text(
    plain: Session, method: str, expected: dict[float, list[Completion]]
) -> None:
    session = Session(
        plain.target,
        plain.tokenizer,
        method,
        eos_ids=plain.eos_ids,
        fingerprint=plain.fingerprint,
        drafts=plain.host.open,
    )
    for temperature, texts in expected.items():
        accepted = 0
        for turn, text in zip(TURNS, texts):
            found = session.chat(turn, temperature=temperature, seed=5, **OPTIONS)
            assert found.tokens == text.tokens
            accepted += found.stats.tokens - found.stats.rounds
        assert accepted > 0


@pytest.mark.parametrize("method", ["medusa", "chimera", "eagle", "draft", "ppd"])
def test_parts_are_small(method: str) -> None:
    folders = [path for path in shipped(method).iterdir() if path.is_dir()]
    assert folders
    for folder in folders:
        assert sum(file.stat().st_size for file in folder.iterdir()) < 25 << 20


def test_of_trained_sources_the_one_with_the_longest_chains_is_asked(plain: Session) -> None:
    trained = {"eagle", "medusa", "chimera"}
    best = max(trained, key=lambda name: shipped_chain(name, plain.fingerprint))
    names = {*make_drafter("auto", plain.host).source_names}
    assert names & {*trained, "speculative"} == {best}
    others = {*make_drafter(f"auto:-{best}", plain.host).source_names}
    assert len(others & trained) == 1 and best not in others
    named = make_drafter("auto:sources=anpd+eagle+medusa", plain.host)
    assert named.source_names == ("anpd", "eagle", "medusa")


@needs_library  # without it, nothing is kept
def test_a_start_with_all_sources_opens_no_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Parts read what was kept for passes."""
    store = ModelStore()
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    (tmp_path / "models").symlink_to(store.path("smollm2-135m").parent)
    opened = []

    def load(name: str, **options: Any) -> Any:
        opened.append(name)
        return load_causal_lm(name, **options)

    monkeypatch.setattr(prepared_models, "load_causal_lm", load)
    for _ in range(2):
        paceline.load("smollm2-135m", "auto", measure=False).generate("A B A B", max_new_tokens=4)
    assert len(opened) == 1
