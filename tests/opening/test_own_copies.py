"""`draft=self`: a quantised copy of the model drafts for it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.c_library import needs_library
from tests.helpers import naive_stream, play
from tests.tiny import save_tiny_llama
from tests.tiny_models import needs_kernels, new_model, some_prompt

import paceline
from paceline.cli import main
from paceline.drafters import Host, ModelChoice, make_drafter
from paceline.errors import ModelError, UsageError
from paceline.kernels.programs.steps import Kind, Op
from paceline.loop import Generation
from paceline.models import memory
from paceline.opening.draft_models import DraftModels
from paceline.sampling import GREEDY, Sampler
from paceline.stopping import Stopping
from paceline.targets.causal_lm import CausalLMTarget
from paceline.targets.engines import open_target
from paceline.targets.late_model import LateModel
from paceline.targets.prepare import prepare
from paceline.targets.toy import ToyTarget

pytestmark = needs_library

SAMPLERS = [GREEDY, Sampler(seed=3, temperature=0.8)]
METHODS = [
    "speculative:draft=self",
    "speculative:draft=self,weights=int8,length=4,branches=0",
    "speculative:draft=self,inner=anpd,length=5",
    "speculative:draft=self,weights=int8,inner=(speculative:draft=self,weights=int4)",
    "ouroboros:draft=self,length=4",
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Say how much main memory is free."""
    return lambda free: monkeypatch.setattr(memory, "free_memory", lambda: free)


def host_of(
    architecture: str = "llama", weights: str = "packed", **model: Any
) -> tuple[CausalLMTarget, Host]:
    """A target, and what its drafters get."""
    target = open_target(new_model(architecture, **model), weights=weights, check=False)
    return target, Host(target, open=DraftModels(target.late_model, "", target=target))


def copy_of(host: Host, weights: str = "") -> CausalLMTarget:
    assert host.open is not None
    found = host.open(ModelChoice("self", weights=weights)).target
    assert isinstance(found, CausalLMTarget)
    return found


@pytest.mark.parametrize("weights", ["int4", "int8"])
def test_the_output_head_of_a_copy_is_as_wide_as_the_model(weights: str) -> None:
    """Its matrices are filled up to whole groups."""
    target, host = host_of(hidden_size=48, num_attention_heads=6, num_key_value_heads=3)
    copied, own = copy_of(host, weights).output_head(None)[0], target.output_head(None)[0]
    assert copied.shape == own.shape
    torch.testing.assert_close(copied, own, rtol=0, atol=0.02)


def scores(target: CausalLMTarget) -> torch.Tensor:
    slot = target.open(some_prompt(9))
    found = torch.from_numpy(target.follow(slot, 9, [3]).numbers.copy())
    target.close(slot)
    return found


# ---- losslessness ----


@cache
def shared_host(weights: str) -> tuple[CausalLMTarget, Host]:
    return host_of(weights=weights)


@cache
def plain_text(weights: str, prompt: tuple[int, ...], sampler: Sampler) -> list[int]:
    return naive_stream(host_of(weights=weights)[0], prompt, 24, sampler)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("weights", ["packed", "native"])
def test_two_texts_at_once_are_those_of_plain_decoding(
    weights: str, method: str, sampler: Sampler
) -> None:
    target, host = shared_host(weights)
    prompts = some_prompt(17), some_prompt(11, seed=1)
    drafters = [make_drafter(method, host) for _ in prompts]
    generations = [
        Generation(prompt, drafter, Stopping(24), sampler)
        for prompt, drafter in zip(prompts, drafters)
    ]
    play(target, generations, 8)
    for prompt, generation in zip(prompts, generations):
        assert generation.output == plain_text(weights, tuple(prompt), sampler)


@pytest.mark.parametrize(
    "model",
    [
        {"architecture": "gemma3"},
        {"architecture": "gpt2"},
        {"architecture": "qwen2", "dtype": torch.bfloat16},
        # Runs its own forward, and so does the copy; experts keep their floats.
        {"architecture": "mixtral", "weights": "native"},
    ],
    ids=str,
)
def test_a_copy_of_any_model_drafts_for_it(model: dict[str, Any]) -> None:
    target, host = host_of(**model)
    for sampler in SAMPLERS:
        expected = naive_stream(target, some_prompt(17), 16, sampler)
        text = Generation(some_prompt(17), make_drafter(METHODS[1], host), Stopping(16), sampler)
        (rounds,) = play(target, [text], 8)
        assert text.output == expected
        assert any(round.tree.tokens for round in rounds)


# ---- what the copy is ----


@pytest.mark.parametrize("weights", ["int4", "int8"])
def test_it_is_what_rounding_the_model_itself_gives(weights: str) -> None:
    _, host = host_of()
    rounded = open_target(new_model("llama"), weights=weights, check=False)
    expected = scores(rounded)
    for origin in ("packed", "native"):
        found = copy_of(host_of(weights=origin)[1], weights)
        assert found.describe().weights == weights
        torch.testing.assert_close(scores(found), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(scores(copy_of(host, weights)), expected, rtol=1e-5, atol=1e-5)


def test_its_output_head_is_its_own() -> None:
    expected = open_target(new_model("llama"), weights="int8", check=False).output_head()
    for origin in ("packed", "native"):
        target, host = host_of(weights=origin)
        torch.testing.assert_close(copy_of(host, "int8").output_head(), expected)
        assert not torch.allclose(target.output_head()[0], expected[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("weights", ["packed", "native"])
def test_the_model_stays_as_it_is(weights: str) -> None:
    target, host = host_of(weights=weights, dtype=torch.bfloat16)
    model = target.model
    before = {name: each.clone() for name, each in model.state_dict().items()}
    kinds = {name: type(each) for name, each in model.named_modules()}
    expected = naive_stream(target, some_prompt(17), 12)
    copy_of(host, "int8")
    assert {name: type(each) for name, each in model.named_modules()} == kinds
    for name, each in model.state_dict().items():
        assert each.dtype == before[name].dtype and torch.equal(each, before[name])
    assert naive_stream(target, some_prompt(17), 12) == expected


def test_all_but_rounded_matrices_is_shared() -> None:
    target, host = host_of()
    copy = copy_of(host, "int4")
    assert target.steps is not None and copy.steps is not None
    for own, other in zip(target.steps.steps, copy.steps.steps, strict=True):
        if own.op != Op.PRODUCT:
            assert own is other
            continue
        assert own.matrix is not None and other.matrix is not None and other.out is not None
        head = other.out.kind == Kind.KEPT
        assert other.matrix.format == ("Q8_0" if head else "Q4_1")
        assert own.matrix.format == "F32" and own.bias is other.bias
    assert copy.steps.tables is target.steps.tables
    own_bytes, bytes_of_copy = (each.describe().weight_bytes for each in (target, copy))
    assert bytes_of_copy < own_bytes


def test_it_is_made_once_and_shared_by_all_texts() -> None:
    _, host = host_of()
    assert copy_of(host) is copy_of(host, "int4") is copy_of(host)
    assert copy_of(host) is not copy_of(host, "int8")


def test_a_draft_model_in_turn_has_a_copy_of_its_own(tiny: Path) -> None:
    session = paceline.load(str(tiny), "plain", device="cpu", weights="packed", measure=False)
    assert session.host.open is not None
    eighths = session.host.open(ModelChoice("self", weights="int8"))
    assert eighths.open is not None
    nested = eighths.open(ModelChoice("self"))
    assert nested.target is not session.host.open(ModelChoice("self")).target
    assert nested.fingerprint == eighths.fingerprint == session.fingerprint
    with pytest.raises(UsageError, match="could not draft faster"):
        eighths.open(ModelChoice("self", weights="int8"))


def test_a_cache_is_held_as_the_models(tiny: Path) -> None:
    session = paceline.load(
        str(tiny), "plain", device="cpu", weights="packed", cache_dtype="int8", measure=False
    )
    assert copy_of(session.host).describe().report["cache"]["dtype"] == "int8"


@pytest.mark.parametrize("cache_dtype", ["float32", "int8"])
def test_what_the_model_has_read_is_not_read_again(cache_dtype: str) -> None:
    target = open_target(new_model("llama"), weights="packed", check=False, cache_dtype=cache_dtype)
    copy = copy_of(Host(target, open=DraftModels(target.late_model, "", target=target)))
    unread = copy.open([1, 2, 3])
    assert copy.pending(unread) == 2  # nobody has
    text = some_prompt(200)
    slot = target.open(text)
    target.prefill(slot, 190)
    adopted = copy.open([*text, 7])
    assert copy.pending(adopted) == 200 - 190
    for own, origin in zip(copy._texts.cache.tensors(), target._texts.cache.tensors()):
        for here, there in zip(own, origin):
            at, source = copy._texts[adopted].start, target._texts[slot].start
            rows = there[:, :, source : source + 190]
            assert rows.any() and torch.equal(here[:, :, at : at + 190], rows)
    assert torch.from_numpy(copy.follow(adopted, 201, [5]).numbers).isfinite().all()


def test_a_text_is_drafted_for_when_its_prompt_was_read() -> None:
    target, host = host_of()
    generation = Generation(some_prompt(40), make_drafter(METHODS[1], host), Stopping(12), GREEDY)
    (rounds,) = play(target, [generation], 8)
    assert not len(rounds[0].tree) and len(rounds[1].tree)


# ---- the front ----


@pytest.mark.parametrize("weights", ["packed", "native", "fused"])
@pytest.mark.parametrize("engine", ["compiled", "transformers"])
def test_a_session_writes_the_text_of_plain_decoding(tiny: Path, weights: str, engine: str) -> None:
    load = {"device": "cpu", "weights": weights, "engine": engine, "measure": False}
    plain = paceline.load(str(tiny), "plain", **load)
    fast = paceline.load(str(tiny), METHODS[1], **load)
    for options in ({}, {"temperature": 0.8, "seed": 5}):
        request = {"max_new_tokens": 24, "ignore_eos": True, "budget": 8, **options}
        found = fast.generate("hello there", **request)
        assert found.tokens == plain.generate("hello there", **request).tokens
        assert found.stats.drafted


@pytest.mark.parametrize("weights", ["native", "packed"])
def test_inside_transformers(weights: str) -> None:
    ids = torch.tensor([[5, 6, 7, 8, 5], [9, 9, 7, 8, 1]])
    request = {"inputs": ids, "max_new_tokens": 20, "pad_token_id": 0}
    expected = new_model("llama").generate(**request, do_sample=False)
    fast = paceline.accelerate(
        new_model("llama"), "speculative", weights=weights, draft="self", length=3, budget=8
    )
    for _ in range(2):
        assert torch.equal(fast.generate(**request), expected)
    assert fast.pace._known is not None and fast.pace._known.drafts is not None
    assert len(fast.pace._known.drafts._opened) == 1


# ---- what is refused ----


def test_weights_that_no_copy_has_are_refused_before_the_model_is_loaded() -> None:
    for method in ("speculative", "ouroboros"):
        with pytest.raises(UsageError, match=r"with weights int4 or int8, not 'int3'"):
            paceline.load("no-such-model", f"{method}:draft=self,weights=int3")
        with pytest.raises(UsageError, match="leave out device and dtype"):
            paceline.load("no-such-model", f"{method}:draft=self,dtype=float16")


@pytest.mark.parametrize("weights", ["int4", "int8"])
def test_a_copy_that_is_no_smaller_is_refused(weights: str) -> None:
    needs_kernels(weights)
    _, host = host_of(weights=weights)
    with pytest.raises(UsageError, match=r"could not draft faster: load the model with weights="):
        copy_of(host, weights)


def test_where_nobody_can_copy() -> None:
    with pytest.raises(UsageError, match="this host cannot open the draft model 'self'"):
        make_drafter("speculative:draft=self", Host(ToyTarget()))
    drafts = DraftModels(host_of()[0].late_model, "", target=ToyTarget())
    with pytest.raises(UsageError, match="a ToyTarget cannot be copied"):
        drafts(ModelChoice("self"))


@pytest.mark.parametrize("weights", ["packed", "native"])
def test_memory_is_asked_first(weights: str, room: Callable[[int | None], None]) -> None:
    _, host = host_of(weights=weights)
    room(1000)
    with pytest.raises(
        ModelError,
        match=r"a copy of this model with int4 weights needs about .* but only 0.00 GB are free",
    ):
        copy_of(host)
    room(None)
    copy_of(host)


def test_a_command_ends_with_one_sentence_where_there_is_no_memory(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    free = iter([1 << 30])  # for the model itself
    monkeypatch.setattr(memory, "free_memory", lambda: next(free, 1000))
    words = ["generate", "hello", "-m", str(tiny), "--weights", "packed", "--draft-model", "self"]
    monkeypatch.setattr(sys, "argv", ["paceline", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "a copy of this model with int4 weights needs about" in said and "Traceback" not in said


def test_weights_that_cannot_be_read_any_more(tiny: Path, tmp_path: Path) -> None:
    model = new_model("mixtral")
    prepare(model, "packed")
    drafts = DraftModels(LateModel.opened(model), "", device="cpu")
    with pytest.raises(ModelError, match="cannot be copied, and it has no files"):
        drafts(ModelChoice("self"))
    model.name_or_path = str(tiny)
    with pytest.raises(ModelError, match="now contains another model"):
        DraftModels(LateModel.opened(model), "of-mixtral")(ModelChoice("self"))
    model.name_or_path = str(tiny / "gone")
    with pytest.raises(ModelError, match="its files cannot be read: unknown model"):
        drafts(ModelChoice("self"))
    damaged = save_tiny_llama(tmp_path / "damaged")
    file = damaged / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    model.name_or_path = str(damaged)
    with pytest.raises(ModelError, match="its files cannot be read") as caught:
        drafts(ModelChoice("self"))
    assert "\n" not in str(caught.value)
