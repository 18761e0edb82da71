"""Draft models on their base's embeddings, started from what was kept of the last start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.c_library import needs_library
from tests.models.gguf_files import save_gguf
from tests.saved_drafts import save_draft

import paceline
from paceline.drafters import Host, ModelChoice
from paceline.errors import ModelError
from paceline.models import load_causal_lm
from paceline.models.draft_folder import DraftRecord, open_draft
from paceline.models.draft_model import own_tensors
from paceline.opening import kept_targets, own_drafts
from paceline.session import Session
from paceline.targets.one_call.stored import tensors_of
from paceline.training.cutting import cut

pytestmark = needs_library

PROMPT = "ABCABCABDE"
SOME = torch.tensor([0, 3, 5, 17, 40, 41, 63])


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Draft models that are opened."""
    folders = []

    def open(folder: Path, *others: Any) -> Any:
        folders.append(folder)
        return open_draft(folder, *others)

    monkeypatch.setattr(own_drafts, "open_draft", open)
    return folders


def saved(folder: Path, file: Path, layer: int = 1, some: torch.Tensor | None = None) -> Path:
    base = load_causal_lm(str(file), device="cpu", blocks=False)
    draft = cut(base.model, (layer,), some)
    words = 0 if some is None else len(some)
    record = DraftRecord(base.fingerprint, "a test's", (layer,), words)
    save_draft(folder, draft.config, own_tensors(draft, base.model), record, {})
    return folder


def start(file: Path) -> Session:
    return paceline.load(str(file), "plain", device="cpu", measure=False)


def host_of(file: Path, folder: Path, weights: str = "") -> Host:
    session = start(file)
    assert session.host.open is not None
    found: Host = session.host.open(ModelChoice(str(folder), weights=weights))
    return found


def said(host: Host) -> list[int]:
    """What the draft model continues a text with."""
    target, text = host.target, [3, 14, 15, 9, 26, 5]
    slot, known = target.open(text), len(text)
    for _ in range(8):
        scores = target.follow(slot, known, text[known:])
        known = len(text)
        text.append(scores.token(int(scores.numbers.argmax())))
    target.close(slot)
    return text


@pytest.mark.parametrize(
    ("family", "own_head", "some"),
    [
        ("llama", False, SOME),
        ("llama", True, None),
        ("gemma3", False, SOME),
        ("gpt2", True, None),
    ],
)
def test_the_next_start_opens_neither_draft_nor_base(
    root: Path,
    opened: list[Path],
    tmp_path: Path,
    family: str,
    own_head: bool,
    some: torch.Tensor | None,
) -> None:
    file = save_gguf(tmp_path / "m.gguf", family, ("Q4_K", "Q8_0"), own_head=own_head)
    folder = saved(tmp_path / "draft", file, some=some)
    hosts = [host_of(file, folder) for _ in range(3)]
    assert opened == [folder]
    assert hosts[0].target.describe() == hosts[1].target.describe()
    assert hosts[0].fingerprint == hosts[2].fingerprint
    assert said(hosts[0]) == said(hosts[1]) == said(hosts[2])
    texts = [
        start(file).generate(PROMPT, max_new_tokens=12, ignore_eos=True).tokens,
        *(
            paceline.load(str(file), f"speculative:draft={folder}", device="cpu", measure=False)
            .generate(PROMPT, max_new_tokens=12, ignore_eos=True, budget=4)
            .tokens
            for _ in range(2)
        ),
    ]
    assert texts[0] == texts[1] == texts[2]
    assert opened == [folder]


def test_another_draft_in_the_folder_is_another_model(
    root: Path, opened: list[Path], tmp_path: Path
) -> None:
    file, folder = save_gguf(tmp_path / "m.gguf"), tmp_path / "draft"
    before = said(host_of(file, saved(folder, file, 0)))
    after = said(host_of(file, saved(folder, file, 1)))
    assert before != after == said(host_of(file, folder))
    assert len(opened) == 2


def test_weights_of_another_kind_are_another_model(
    root: Path, opened: list[Path], tmp_path: Path
) -> None:
    file = save_gguf(tmp_path / "m.gguf")
    folder = saved(tmp_path / "draft", file)
    kinds = [host_of(file, folder, weights).target for weights in ("packed", "int8", "int8")]
    assert [each.describe().weights for each in kinds] == ["packed", "int8", "int8"]
    assert len(opened) == 2


def test_the_draft_model_is_opened_where_somebody_asks_for_it(
    root: Path, opened: list[Path], tmp_path: Path
) -> None:
    file = save_gguf(tmp_path / "m.gguf")
    folder = saved(tmp_path / "draft", file)
    expected, host = said(host_of(file, folder)), host_of(file, folder)
    assert len(opened) == 1
    target: Any = host.target
    assert target.model.config.num_hidden_layers == 1
    assert len(opened) == 2
    assert said(host) == expected


def test_what_no_longer_fits_its_base_is_made_again(
    root: Path, opened: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = save_gguf(tmp_path / "m.gguf")
    folder = saved(tmp_path / "draft", file)
    expected = said(host_of(file, folder))
    monkeypatch.setattr(kept_targets, "tensors_of", lambda steps: [torch.zeros(3)] * 99)
    assert said(host_of(file, folder)) == expected
    assert len(opened) == 2


@pytest.mark.parametrize(
    ("options", "own_head"),
    [
        ({}, False),
        ({}, True),
        ({"weights": "packed"}, False),
        ({"dtype": "bfloat16"}, True),
    ],
)
def test_a_draft_moves_nothing_of_its_base(
    root: Path, tmp_path: Path, options: dict[str, Any], own_head: bool
) -> None:
    file = save_gguf(tmp_path / "m.gguf", own_head=own_head)
    folder = saved(tmp_path / "draft", file)
    session = paceline.load(str(file), "plain", device="cpu", measure=False, **options)
    target: Any = session.target
    target.late_model.get()
    before = [tensor.data_ptr() for tensor in tensors_of(target.steps)]
    expected = session.generate(PROMPT, max_new_tokens=12, ignore_eos=True).tokens
    assert session.host.open is not None
    said(session.host.open(ModelChoice(str(folder))))
    assert [tensor.data_ptr() for tensor in tensors_of(target.steps)] == before
    assert session.generate(PROMPT, max_new_tokens=12, ignore_eos=True).tokens == expected


def test_a_draft_replaced_in_use_says_so(root: Path, tmp_path: Path) -> None:
    file = save_gguf(tmp_path / "m.gguf")
    folder = saved(tmp_path / "draft", file)
    said(host_of(file, folder))
    target: Any = host_of(file, folder).target
    saved(folder, file, 0)
    with pytest.raises(ModelError, match="replaced meanwhile"):
        target.model  # noqa: B018
