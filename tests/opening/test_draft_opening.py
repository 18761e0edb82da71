"""Draft models by name: opened once, checked against the model's tokenizer, shared by drafters."""

from __future__ import annotations

import gc
from pathlib import Path
from shutil import copy
from typing import Any
from weakref import ref

import pytest
import torch
from tests.saved_drafts import save_draft
from tests.tiny import EOS, byte_tokenizer, save_tiny_llama
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

import paceline
from paceline.drafters import ModelChoice, make_drafter
from paceline.errors import ModelError, UsageError
from paceline.kernels.native.calls import unavailable
from paceline.models import load_causal_lm
from paceline.models.draft_folder import DraftRecord
from paceline.models.draft_model import own_tensors
from paceline.models.vocabulary import shared_tokens
from paceline.opening import draft_models
from paceline.opening.draft_models import DraftModels
from paceline.planning.cost_curve import CostCurve
from paceline.protocols import Drafter
from paceline.records import TextStart
from paceline.targets.late_model import LateModel
from paceline.training.cutting import cut


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


def save_model(folder: Path, tokenizer: Any, vocab_size: int, **config: Any) -> Path:
    """One layer, another seed."""
    torch.manual_seed(5)
    small = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        **config,
    )
    LlamaForCausalLM(small).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smaller model of the family, whose embedding is padded."""
    folder = tmp_path_factory.mktemp("models") / "padded"
    return save_model(folder, byte_tokenizer(), 320)


OPTIONS: list[dict[str, Any]] = [
    {"ignore_eos": True},
    {"temperature": 0.8, "top_p": 0.9, "seed": 4, "ignore_eos": True},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_the_text_is_that_of_plain_decoding(
    tiny: Path, padded: Path, options: dict[str, Any]
) -> None:
    plain = paceline.load(str(tiny), "plain", device="cpu")
    expected = plain.generate("hello there", max_new_tokens=24, **options)
    for settings in (
        {"draft": str(tiny), "length": 4, "branches": 0},
        {"draft": str(padded)},
        {"draft": str(padded), "inner": "anpd:n=3,k=4"},
        {"draft": str(tiny), "inner": f"speculative:draft={padded},inner=pld"},
        {"draft": str(padded), "dtype": "bfloat16", "weights": "native"},
    ):
        session = paceline.load(str(tiny), "speculative", device="cpu", **settings)
        for _ in range(2):
            found = session.generate("hello there", max_new_tokens=24, budget=16, **options)
            assert found.tokens == expected.tokens
        if settings.get("draft") == str(tiny) and "length" in settings:
            assert found.stats.draft_acceptance_rate == 1
    both = session.generate_batch(["hello there", "abc"], max_new_tokens=24, **options)
    assert both[0].tokens == expected.tokens


def base_of(folder: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder).eval()
    return model


def test_a_model_without_a_draft_model_of_its_own_says_so(tiny: Path) -> None:
    for method in ("speculative", "speculative:inner=anpd", "ouroboros"):
        with pytest.raises(ModelError, match="paceline ships no draft model for this model"):
            paceline.load(str(tiny), method, device="cpu")


def test_a_draft_model_cut_out_of_its_target_is_opened_with_it(tiny: Path, tmp_path: Path) -> None:
    loaded = load_causal_lm(str(tiny), device="cpu")
    draft = cut(loaded.model, (0,), None)
    folder = tmp_path / "draft"
    record = DraftRecord(loaded.fingerprint, "tiny", (0,))
    save_draft(folder, draft.config, own_tensors(draft, loaded.model), record, {})
    plain = paceline.load(str(tiny), "plain", device="cpu")
    expected = plain.generate("hello there", max_new_tokens=16)
    session = paceline.load(str(tiny), "speculative", draft=str(folder), device="cpu")
    assert session.generate("hello there", max_new_tokens=16, budget=6).tokens == expected.tokens
    drafter = make_drafter(f"speculative:draft={folder}", session.host)
    small = drafter._draft._target.model  # type: ignore[attr-defined]
    assert small.get_input_embeddings() is session.target.model.get_input_embeddings()
    assert small.config.num_hidden_layers == 1
    assert session.host.open is not None
    with pytest.raises(UsageError, match="shares its target's embeddings"):
        session.host.open(ModelChoice(str(folder), dtype="float32"))


def test_a_draft_model_on_the_hub_is_known_by_its_record(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, kept, asked = load_causal_lm(str(tiny), device="cpu"), tmp_path / "kept", list[str]()
    draft, record = cut(loaded.model, (0,), None), DraftRecord(loaded.fingerprint, "tiny", (0,))
    save_draft(tmp_path / "hub", draft.config, own_tensors(draft, loaded.model), record, {})

    def download(repo: str, allow_patterns: list[str]) -> str:
        asked.append(repo)
        for name in allow_patterns:
            copy(tmp_path / "hub" / name, kept)
        return str(kept)

    def download_one(repo: str, name: str) -> str:
        if repo == "someone/whole":
            raise OSError("404 Client Error")
        kept.mkdir()
        return str(copy(tmp_path / "hub" / name, kept / name))

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download_one)
    how: dict[str, Any] = {"device": "cpu", "measure": False}
    session = paceline.load(str(tiny), "speculative", draft="someone/draft", **how)
    drafter: Any = make_drafter("speculative:draft=someone/draft", session.host)
    assert drafter._draft._target.model.config.num_hidden_layers == 1
    assert asked == ["someone/draft"]
    monkeypatch.setattr(draft_models, "load_causal_lm", lambda name, **how: loaded)
    assert session.host.open is not None
    assert session.host.open(ModelChoice("someone/whole")).fingerprint == loaded.fingerprint
    assert asked == ["someone/draft"]


def test_a_model_is_loaded_once_and_its_hosts_share_a_target(tiny: Path) -> None:
    drafts = DraftModels(LateModel.opened(base_of(tiny)), "", byte_tokenizer(), device="cpu")
    choice = ModelChoice(str(tiny))
    one, other = drafts(choice), drafts(choice)
    assert one.target is other.target and one.shared is other.shared
    assert one.learned is not other.learned
    assert (one.fingerprint, one.tokens) == (other.fingerprint, 257)
    again = drafts(ModelChoice(str(tiny), weights="native"))
    assert again.target.model is not one.target.model  # type: ignore[attr-defined]
    assert again.open is not None
    assert again.open(choice).target is one.target


def test_two_drafters_of_one_draft_model_keep_a_text_each(tiny: Path) -> None:
    session = paceline.load(str(tiny), "plain", device="cpu")
    method = f"speculative:draft={tiny},length=3,branches=0"
    texts = [[1, 2, 3, 4], [1, 2, 7, 8, 9]]

    def guesses(drafters: list[Drafter]) -> list[tuple[int, ...]]:
        for drafter, text in zip(drafters, texts):
            drafter.start(TextStart(text))
        return [drafter.propose(4).tokens for drafter in drafters]

    together = guesses([make_drafter(method, session.host) for _ in texts])
    for place, text in enumerate(texts):
        alone = make_drafter(method, session.host.fresh())
        alone.start(TextStart(text))
        assert alone.propose(4).tokens == together[place]


def test_a_new_host_finds_nothing_of_earlier_texts_in_the_cache(tiny: Path) -> None:
    drafts = DraftModels(LateModel.opened(base_of(tiny)), "", byte_tokenizer(), device="cpu")
    choice = ModelChoice(str(tiny))
    target = drafts(choice).target
    slot = target.open([1, 2, 3])
    target.prefill(slot, 2)
    target.close(slot)
    slot = drafts(choice).target.open([1, 2, 3])
    assert target.pending(slot) == 2
    target.close(slot)


def test_costs_of_a_draft_model_are_measured_once_if_asked_for(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    stages = list[str]()

    def curve(measure: bool) -> CostCurve | None:
        drafts = DraftModels(
            LateModel.opened(base_of(tiny)),
            "",
            byte_tokenizer(),
            device="cpu",
            measure=measure,
            progress=lambda stage, done, total: stages.append(stage),
        )
        return drafts(ModelChoice(str(tiny))).curve

    assert curve(measure=False) is None and "measure" not in stages
    found = curve(measure=True)
    assert found is not None and 8 in found.widths and "measure" in stages


def test_settings_place_the_draft_model(tiny: Path) -> None:
    drafts = DraftModels(
        LateModel.opened(base_of(tiny)), "", byte_tokenizer(), device="cpu", dtype="bfloat16"
    )
    own = drafts(ModelChoice(str(tiny), dtype="float32", device="cpu", weights="native"))
    default = drafts(ModelChoice(str(tiny), weights="native"))
    assert own.target.model.dtype == torch.float32  # type: ignore[attr-defined]
    assert default.target.model.dtype == torch.bfloat16  # type: ignore[attr-defined]
    for choice, said in (
        (ModelChoice(str(tiny), weights="heavy"), "unknown weights 'heavy'"),
        (ModelChoice(str(tiny), dtype="int3"), "dtype 'int3'"),
        (ModelChoice(str(tiny), device="moon"), "no device 'moon'"),
    ):
        with pytest.raises(UsageError, match=said):
            drafts(choice)


def test_a_draft_model_that_is_not_there_is_named(tiny: Path) -> None:
    for name in ("nothing-here", "~nobody-of-this-name/model", "n" * 300):
        with pytest.raises(ModelError, match=f"unknown model '{name}'"):
            paceline.load(str(tiny), "speculative", device="cpu", draft=name)


# ---- vocabularies ----


def with_vocabulary(changes: dict[int, int] | None = None, dropped: tuple[int, ...] = ()) -> Any:
    """The byte tokenizer with tokens exchanged or left out."""
    tokenizer = byte_tokenizer()
    vocabulary = {text: token for text, token in tokenizer.get_vocab().items() if token < 256}
    changed = {text: (changes or {}).get(token, token) for text, token in vocabulary.items()}

    class Changed:
        def get_vocab(self) -> dict[str, int]:
            return {**changed, EOS: 256} if 256 not in dropped else dict(changed)

        def get_added_vocab(self) -> dict[str, int]:
            return {EOS: 256}

    for text, token in vocabulary.items():
        if token in dropped:
            del changed[text]
    return Changed()


def test_the_same_tokenizer_shares_all_tokens() -> None:
    assert shared_tokens(byte_tokenizer(), byte_tokenizer(), "x") == 257
    assert shared_tokens(byte_tokenizer(), with_vocabulary(), "x") == 257


def test_added_tokens_may_be_missing() -> None:
    assert shared_tokens(byte_tokenizer(), with_vocabulary(dropped=(256,)), "x") == 256


def test_another_text_for_a_token_is_refused_by_its_number() -> None:
    with pytest.raises(ModelError) as caught:
        shared_tokens(byte_tokenizer(), with_vocabulary({70: 71, 71: 70}), "some/draft")
    own = {token: text for text, token in byte_tokenizer().get_vocab().items()}
    assert str(caught.value) == (
        "some/draft cannot draft for this model: token 70 is "
        f"{own[71]!r} in its tokenizer and {own[70]!r} in the model's"
    )


def test_a_shorter_vocabulary_is_refused() -> None:
    with pytest.raises(
        ModelError, match="has 255 tokens and the model's 257; token 100 is the first"
    ):
        shared_tokens(byte_tokenizer(), with_vocabulary(dropped=(100, 101)), "x")


def test_a_draft_model_with_another_tokenizer_is_refused_at_load(
    tiny: Path, tmp_path: Path
) -> None:
    tokenizer = byte_tokenizer()
    state = tokenizer.backend_tokenizer.to_str().replace('"A":', '"\\u0000A":')
    other = type(tokenizer)(
        tokenizer_object=type(tokenizer.backend_tokenizer).from_str(state), eos_token=EOS
    )
    folder = save_model(tmp_path / "other", other, 257)
    with pytest.raises(ModelError, match="cannot draft for this model: token"):
        paceline.load(str(tiny), "speculative", device="cpu", draft=str(folder))


# ---- inside transformers ----


@pytest.mark.parametrize("sampling", [{}, {"do_sample": True, "temperature": 0.7, "top_k": 30}])
def test_a_loaded_model_drafts_for_another_one(
    tiny: Path, padded: Path, sampling: dict[str, Any]
) -> None:
    model, small = (AutoModelForCausalLM.from_pretrained(path).eval() for path in (tiny, padded))
    ids = torch.tensor([[5, 6, 7, 8, 5], [9, 9, 7, 8, 1]])
    request = {"inputs": ids, "max_new_tokens": 20, "pad_token_id": 0, **sampling}
    plain = paceline.accelerate(model, "plain", seed=3).generate(**request)
    for draft, inner in ((small, "anpd"), (model, "plain"), (str(padded), "plain")):
        fast = paceline.accelerate(
            model, "speculative", draft=draft, inner=inner, length=3, branches=0, seed=3, budget=8
        )
        for _ in range(2):
            assert torch.equal(fast.generate(**request), plain)
        if draft is model:
            # Its warpers keep no state, so the draft model draws as the model does.
            assert all(stats.draft_acceptance_rate == 1 for stats in fast.stats)


def test_what_a_loaded_draft_model_cannot_be(tiny: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny).eval()
    ids = torch.tensor([[5, 6, 7]])
    with pytest.raises(UsageError, match="name of a model as a string"):
        paceline.accelerate(model, "speculative", draft=tiny).generate(ids, max_new_tokens=3)
    with pytest.raises(UsageError, match="already loaded stays as it is"):
        DraftModels(LateModel.opened(model), "")(ModelChoice(model, weights="int8"))
    large = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=1000,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=1,
            num_attention_heads=2,
        )
    ).eval()
    with pytest.raises(
        ModelError, match="has a vocabulary of 1000 tokens and the model one of 257"
    ):
        paceline.accelerate(model, "speculative", draft=large).generate(ids, max_new_tokens=3)


@pytest.mark.parametrize(
    "method", ["auto", "anpd", "speculative:inner=anpd", "speculative:draft=self,inner=pld"]
)
def test_a_model_is_free_with_its_session(tiny: Path, padded: Path, method: str) -> None:
    """Without waiting for a collection of garbage: models are large."""
    if "self" in method and unavailable():
        pytest.skip(unavailable())
    if method.startswith("speculative:inner"):
        method += f",draft={padded}"
    session = paceline.load(str(tiny), method, device="cpu", weights="native", measure=False)
    session.generate("hello there", max_new_tokens=12, budget=6)
    session.use_curve(None)
    session.generate("hello there", max_new_tokens=12)
    target: Any = session.target
    gone = [ref(target), ref(target.model)]
    gc.collect()
    gc.disable()
    try:
        del session, target
        assert [each() for each in gone] == [None, None]
    finally:
        gc.enable()
