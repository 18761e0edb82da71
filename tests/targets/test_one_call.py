"""Passes in one call: what they compute, and what is not run so."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
import torch
from tests.c_library import needs_library
from tests.one_pass import one_pass
from tests.tiny_models import VOCAB, new_model, some_prompt
from transformers import (
    OlmoConfig,
    OlmoForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
)

from paceline.errors import UsageError
from paceline.kernels.native.calls import kernels
from paceline.kernels.token_table import head_reads_table
from paceline.records import Path
from paceline.targets import model_pass
from paceline.targets.cache_dtypes import CACHE_DTYPES
from paceline.targets.causal_lm import CausalLMTarget
from paceline.targets.engines import open_target
from paceline.targets.late_model import LateModel
from paceline.targets.one_call.recording import UnfitError
from paceline.targets.one_call.stored import read_steps, written_steps
from paceline.targets.prepare import prepare
from paceline.testing import check_target
from paceline.tree import EMPTY, Tree

pytestmark = needs_library

EAGER = {"gemma2"}
FAMILIES = [
    *("llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3", "gpt2", "gpt_neox"),
    *("phi", "phi3", "starcoder2", "ministral3"),
]
TREE = Tree((5, 9, 11, 3, 7), (-1, -1, 0, 2, 1))


def new(name: str, **changes: object) -> PreTrainedModel:
    return new_model(name, "eager" if name in EAGER else "sdpa", **changes)  # type: ignore[arg-type]


LONG = {"max_position_embeddings": 1024}


def compiled(
    model: PreTrainedModel, weights: str = "packed", check: bool = True, cache: str = "float32"
) -> CausalLMTarget:
    target = open_target(model, weights=weights, check=check, cache_dtype=cache)
    assert target.describe().report["own_forward"] == ""
    return target


def exact_scores(model: PreTrainedModel, texts: list[list[int]]) -> torch.Tensor:
    """The last row of each text, from the model's own forward in float64."""
    rows = [model(torch.tensor([text]), use_cache=False).logits[0, -1] for text in texts]
    return torch.stack(rows)


@pytest.mark.parametrize("name", FAMILIES)
def test_families_compute_what_their_own_forward_does(name: str) -> None:
    exact = new(name, dtype=torch.float64)
    target = compiled(new(name))
    prompt = some_prompt(40)
    slot = target.open(prompt)
    found = target.score({slot: TREE})[slot]
    paths = [[], [5], [9], [5, 11], [5, 11, 3], [9, 7]]
    expected = exact_scores(exact, [[*prompt, *path] for path in paths])
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=2e-4)
    target.commit({slot: Path((0, 2), (5, 11, 2))})
    after = target.score({slot: EMPTY})[slot]
    expected = exact_scores(exact, [[*prompt, 5, 11, 2]])
    torch.testing.assert_close(after.double(), expected, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_steps_that_were_written_are_read_as_they_were(name: str) -> None:
    target = compiled(new(name))
    written = written_steps(target.steps, 128)
    assert written is not None
    record, tensors = written
    copies = {name: each.clone() for name, each in tensors.items()}
    steps = read_steps(json.loads(json.dumps(record)), copies)

    def nobody() -> PreTrainedModel:
        raise AssertionError("the model is not needed")

    late = LateModel(target.late_model.facts, nobody)
    again = CausalLMTarget.stored(late, steps, target.preparation)
    assert again.describe() == target.describe()
    found = []
    for each in (target, again):
        each.keep_states((0, 1, 2))
        slot = each.open(some_prompt(40))
        rows = each.score({slot: TREE})[slot]
        found.append((rows, each.states(slot).clone(), each.states(slot, (1, 2)).clone()))
    assert all(map(torch.equal, *found))


def test_tables_that_would_be_too_long_are_not_written() -> None:
    target = compiled(new("llama"))
    assert written_steps(target.steps, None) is None
    assert written_steps(target.steps, 1 << 30) is None


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.bfloat16) for name in FAMILIES),
        *((name, torch.float16) for name in ("llama", "gemma3", "gpt2")),
    ],
)
def test_weights_in_16_bits_compute_what_float32_does_of_the_same_numbers(
    name: str, dtype: torch.dtype
) -> None:
    model = new(name, dtype=dtype)
    found, held = [], []
    for each in (deepcopy(model).float(), model):
        target = compiled(each)
        slot = target.open(some_prompt(40))
        found.append(target.score({slot: TREE})[slot])
        target.commit({slot: Path((0, 2), (5, 11, 2))})
        found.append(target.score({slot: EMPTY})[slot])
        held.append(target.describe())
    assert torch.equal(found[0], found[2]) and torch.equal(found[1], found[3])
    assert [each.dtype for each in held] == ["float32", str(dtype).removeprefix("torch.")]
    assert held[1].weight_bytes < 0.6 * held[0].weight_bytes


def test_of_a_model_in_16_bits_head_and_table_are_one() -> None:
    model = new("llama", dtype=torch.bfloat16, tie_word_embeddings=True)
    compiled(model)
    assert head_reads_table(model)
    assert not list(filter(torch.Tensor.numel, model.parameters()))  # nothing is held twice


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_models_in_16_bits_are_rounded_to_the_same_few_bits(weights: str) -> None:
    model = new("qwen2", dtype=torch.bfloat16, hidden_size=64, intermediate_size=96)
    found = []
    for each in (deepcopy(model).float(), model):
        target = compiled(each, weights)
        slot = target.open(some_prompt(12))
        found.append(target.score({slot: TREE})[slot])
    assert torch.equal(*found)


def test_models_with_other_weights_in_16_bits_stay_as_they_are() -> None:
    model = new("mixtral", dtype=torch.bfloat16)
    target = open_target(model, weights="packed")
    assert target.describe().report["own_forward"] and model.dtype == torch.bfloat16
    slot = target.open(some_prompt(9))
    assert target.score({slot: EMPTY})[slot].dtype == torch.bfloat16


@pytest.mark.parametrize(("cache", "close"), [("float16", 3e-3), ("int8", 0.1)])
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_caches_of_fewer_bits_change_scores_a_little(name: str, cache: str, close: float) -> None:
    """After a text of several blocks, and after a path across a tree."""
    prompt, found, bytes_of_slots = some_prompt(300), [], []
    for dtype in ("float32", cache):
        target = compiled(new(name, **LONG), cache=dtype)
        slot = target.open(prompt)
        before = target.score({slot: TREE})[slot]
        target.commit({slot: Path((0, 2), (5, 11, 2))})
        found.append(torch.cat([before, target.score({slot: EMPTY})[slot]]))
        cache_report = target.describe().report["cache"]
        assert cache_report["dtype"] == dtype
        bytes_of_slots.append(cache_report["slot_bytes"])
    gap = float((found[1] - found[0]).norm() / found[0].norm())
    assert 0 < gap < close
    assert bytes_of_slots[1] <= bytes_of_slots[0] / 2


def test_a_cache_of_fewer_bits_needs_passes_in_one_call() -> None:
    with pytest.raises(UsageError, match=r"its own forward \(it was asked for\)"):
        open_target(new("llama"), "transformers", weights="native", cache_dtype="int8")
    with pytest.raises(UsageError, match="use one of float32, float16, int8"):
        open_target(new("llama"), cache_dtype="int3")


@pytest.mark.parametrize("cache", list(CACHE_DTYPES))
@pytest.mark.parametrize("length", [70, 250, 700])
def test_a_row_is_the_same_bits_in_a_tree_in_a_chain_and_on_any_threads(
    cache: str, length: int
) -> None:
    """Whose blocks are done by several threads, or end among the nodes of a tree."""
    model = new("llama", **LONG, head_dim=64)  # as long as vectors, and longer
    target, prompt, found = compiled(model, cache=cache), some_prompt(length), []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            target.forget()
            slot = target.open(prompt)
            tree = target.score({slot: TREE})[slot]
            target.commit({slot: Path((0, 2), (5, 11, 2))})
            found.append([tree[[0, 1, 3, 4]], target.score({slot: EMPTY})[slot]])
            target.close(slot)
            target.forget()
            slot = target.open(prompt)
            chain = target.score({slot: Tree.chain([5, 11, 3])})[slot]
            target.commit({slot: Path((0, 1), (5, 11, 2))})
            found.append([chain, target.score({slot: EMPTY})[slot]])
            target.close(slot)
    finally:
        torch.set_num_threads(threads)
    for rows in found[1:]:
        assert all(torch.equal(mine, first) for mine, first in zip(rows, found[0], strict=True))


@pytest.mark.parametrize(
    ("name", "cache"),
    [("llama", "float32"), ("gemma3", "float32"), ("gpt2", "float32"), ("llama", "int8")],
)
def test_it_keeps_the_contract(name: str, cache: str) -> None:
    model = new(name)
    done = prepare(model, "packed")
    check_target(
        lambda: CausalLMTarget(model, preparation=done, check=False, cache_dtype=cache),
        schedules=1,
    )


@pytest.mark.parametrize("weights", ["packed", "int8", "int4"])
def test_states_and_given_embeddings_are_those_of_the_model(weights: str) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96}
    model = new("llama", **sizes)
    target = compiled(model, weights)
    own = open_target(model, "transformers", weights="native")
    found = []
    for each in (target, own):
        each.keep_states()
        # As a view, which is not one block.
        first = each.add_virtual_tokens(torch.linspace(-1, 1, 128).view(64, 2).T)
        slot = each.open(some_prompt(12))
        tree = Tree((3, first, first + 1), (-1, 0, 1))
        scores = each.score({slot: tree})[slot]
        each.commit({slot: Path((0,), (3, 4))})
        found.append((scores, each.states(slot)))
    for mine, theirs in zip(*found, strict=True):
        # Of rounded weights a last bit decides here and there to what a row is rounded.
        close = 1e-4 if weights == "packed" else 0.15
        assert float((mine - theirs).norm() / theirs.norm()) < close


@pytest.mark.parametrize(
    ("name", "cache"),
    [("gemma2", "float32"), ("gpt_neox", "float32"), ("gemma2", "float16"), ("llama", "int8")],
)
def test_every_tier_makes_the_same_bits(name: str, cache: str) -> None:
    target, found = compiled(new(name, **LONG), check=False, cache=cache), []
    try:
        for tier in kernels().tiers:
            kernels().use(tier)
            slot = target.open(some_prompt(300))
            found.append(target.score({slot: TREE})[slot])
            target.close(slot)
            target.forget()
    finally:
        kernels().use(kernels().tiers[0])
    assert all(torch.equal(each, found[0]) for each in found)


@pytest.mark.parametrize("name", ["mixtral", "phi3 longrope"])
def test_other_models_run_their_own_forward_and_say_why(name: str) -> None:
    target = open_target(new(name), weights="packed")
    assert target.describe().report["own_forward"]
    slot = target.open(some_prompt(9))
    assert target.score({slot: EMPTY})[slot].shape == (1, VOCAB)


def test_a_pass_that_computes_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(model_pass.CompiledPass):
        def run(self, *args: object) -> torch.Tensor:
            return super().run(*args).flip(-1)  # type: ignore[arg-type]

    monkeypatch.setattr(model_pass, "CompiledPass", Wrong)
    target = open_target(new("llama"), weights="packed")
    assert "differs from its plain forward" in target.describe().report["own_forward"]
    slot, plain = target.open(some_prompt(9)), new("llama")
    found = target.score({slot: EMPTY})[slot]
    torch.testing.assert_close(found, exact_scores(plain, [some_prompt(9)]), rtol=1e-3, atol=1e-3)


def test_a_model_that_lost_a_layer_runs_its_own_forward() -> None:
    model, plain = (new("llama", num_hidden_layers=4) for _ in range(2))
    for each in (model, plain):
        del each.model.layers[1]  # those after it keep their numbers, and so their caches
    target = open_target(model, weights="packed")
    assert "not numbered from 0 on" in target.describe().report["own_forward"]
    slot = target.open(some_prompt(9))
    expected = exact_scores(plain, [some_prompt(9)])
    torch.testing.assert_close(target.score({slot: EMPTY})[slot], expected, rtol=1e-3, atol=1e-3)


def test_many_query_heads_for_each_key_head_take_the_own_forward() -> None:
    heads = {"num_attention_heads": 64, "num_key_value_heads": 1}
    model, plain = (new("llama", hidden_size=64, head_dim=8, **heads) for _ in range(2))
    target = open_target(model, weights="packed")
    assert target.describe().report["own_forward"].startswith("64 of its query heads share one")
    assert target.runs_as_opened
    slot = target.open(some_prompt(9))
    expected = exact_scores(plain, [some_prompt(9)])
    torch.testing.assert_close(target.score({slot: EMPTY})[slot], expected, rtol=1e-3, atol=1e-3)


def test_a_model_that_cannot_be_watched_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise UnfitError("it is Tuesday")

    monkeypatch.setattr("paceline.targets.one_call.compiled_pass.record", broken)
    report = open_target(new("llama"), weights="packed").describe().report
    assert report["own_forward"] == "it is Tuesday"


def test_prompts_in_pieces() -> None:
    target, own = (
        compiled(new("llama")),
        open_target(new("llama"), "transformers", weights="native"),
    )
    prompt = some_prompt(200)
    rows = []
    for each in (target, own):
        slot = each.open(prompt)
        each.score({}, {slot: 150})
        rows.append(each.score({slot: EMPTY})[slot])
    torch.testing.assert_close(*rows, rtol=1e-3, atol=1e-4)


def test_a_last_layer_whose_output_is_the_last_state_is_kept_row_by_row() -> None:
    """OPT's first models normalise after each layer, and not once more at the end."""
    sizes = {"hidden_size": 64, "ffn_dim": 128, "num_attention_heads": 4, "num_hidden_layers": 2}
    config = OPTConfig(vocab_size=320, word_embed_proj_dim=64, do_layer_norm_before=False, **sizes)
    model = OPTForCausalLM(config).eval()
    found = []
    for each in (compiled(model), open_target(model, "transformers")):
        each.keep_states((0, 1, 2))
        slot = each.open(some_prompt(40))
        each.score({slot: TREE})
        each.commit({slot: Path((0,), (3, 4))})
        found.append(each.states(slot, (1, 2)).clone())
    assert float((found[0] - found[1]).abs().max()) < 1e-4


def test_norms_without_weights_or_without_a_shift_are_run() -> None:
    """OLMo's have neither."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": None}
    olmo = OlmoForCausalLM(OlmoConfig(vocab_size=VOCAB, eos_token_id=None, **sizes, **heads))
    unshifted = new("gpt2")
    for module in unshifted.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.bias = None
    for model in (olmo.eval(), unshifted):
        exact = deepcopy(model).double()
        found = one_pass(compiled(model), some_prompt(40))
        expected = exact_scores(exact, [some_prompt(40)])
        torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=2e-4)
