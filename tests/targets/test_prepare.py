"""Packed, fused and quantised models: the same model, told by its scores and its texts."""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import Any

import pytest
import torch
import transformers
from tests.c_library import needs_library, without_library
from tests.in_step import InStep, new_target
from tests.tiny_models import VOCAB, needs_kernels, new_model, some_prompt
from torch import nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, PreTrainedModel

import paceline
from paceline.drafters import make_drafter
from paceline.errors import ModelError, UsageError
from paceline.kernels import block_layers
from paceline.kernels.block_layers import Int4Linear, Int8Linear, move_matrices
from paceline.kernels.linear import (
    FastLinear,
    PackedAndPlainLinear,
    PackedLinear,
    PlainLinear,
    UnpackableError,
)
from paceline.kernels.memory import FilePages, WeightMemory
from paceline.kernels.native.calls import unavailable
from paceline.kernels.norm import fast_norm
from paceline.kernels.shared_input import SharedInput
from paceline.loop import Generation, decode
from paceline.stopping import Stopping
from paceline.targets import prepare as preparing
from paceline.targets.linear_watch import watching
from paceline.targets.prepare import prepare
from paceline.targets.weights import least_rows, weight_bytes
from paceline.tree import EMPTY, Tree

FLOAT = ["fused", "packed", "packed+plain"]
ARCHITECTURES = ["llama", "qwen2", "qwen3", "mistral", "gemma3", "gpt2", "phi", "phi3"]
# Sizes that 4-bit groups of 32 fit.
ROUND = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}


def scores(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0]


def written(target: InStep, method: str, count: int = 24) -> list[int]:
    text = Generation(some_prompt(30), make_drafter(method), Stopping(count))
    for _ in decode(target, [text]):
        pass
    return text.output


@pytest.mark.parametrize("weights", FLOAT)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_prepared_model_scores_as_before(architecture: str, weights: str) -> None:
    model = new_model(architecture)
    expected = scores(model, some_prompt(20))
    done = prepare(model, weights)
    assert done.weights == weights and done.linears >= done.products > 0 and not done.left
    assert not [each for each in model.modules() if type(each) is nn.Linear]
    torch.testing.assert_close(scores(model, some_prompt(20)), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("weights", [*FLOAT, "int8", "int4"])
@pytest.mark.parametrize("method", ["anpd", "llma:k=5", "pld"])
def test_drafting_on_prepared_weights_writes_what_plain_decoding_writes(
    weights: str, method: str
) -> None:
    needs_kernels(weights)
    model = new_model("llama", **ROUND)
    target = new_target(model, preparation=prepare(model, weights))
    assert target.describe().weights == weights
    assert written(target, method) == written(target, "plain")


@pytest.mark.parametrize("weights", FLOAT)
def test_a_prepared_model_writes_what_it_wrote_before(weights: str) -> None:
    model = new_model("llama")
    expected = written(new_target(model), "plain")
    prepare(model, weights)
    assert written(new_target(model), "anpd") == expected


@pytest.mark.parametrize("weights", FLOAT)
def test_a_model_may_be_prepared_under_autocast(weights: str) -> None:
    """Which does not round what packed layers return, and rounds what they read."""
    with torch.autocast("cpu", torch.bfloat16):
        assert prepare(new_model("llama"), weights).products > 0
        with without_library(block_layers):
            assert prepare(new_model("llama"), weights).products > 0


def test_native_leaves_the_model_alone() -> None:
    model = new_model("llama")
    before = dict(model.named_modules())
    assert prepare(model, "native").as_json()["linears"] == 0
    assert dict(model.named_modules()) == before


def test_layers_of_one_input_become_one_product() -> None:
    model = new_model("llama")
    done = prepare(model, "packed")
    # Per layer q-k-v, o, gate-up and down; and the output head.
    assert (done.linears, done.products) == (3 * 7 + 1, 3 * 4 + 1)
    assert done.norms == 3 * 2 + 1 and done.grouped_attention == (not unavailable())


def test_layers_called_twice_share_nothing() -> None:
    layer, other = nn.Linear(4, 4), nn.Linear(4, 4)
    rows = torch.ones(1, 4)
    calls = [[(layer, rows), (other, rows)], [(layer, rows)] * 2]
    calls.append([(layer, rows), (other, rows + 0)])
    found = []
    for some in calls:
        with watching([layer, other]) as seen:
            for each, given in some:
                each(given)
        found.append(seen.shared)
    assert found == [[[layer, other]], [], []]


def test_tied_output_heads_are_packed_and_the_embedding_stays() -> None:
    model = new_model("llama", tie_word_embeddings=True)
    embedding = model.get_input_embeddings().weight
    floor = sum(each.nbytes for each in model.parameters())
    prepare(model, "packed")
    assert isinstance(model.get_output_embeddings(), FastLinear)
    assert model.get_input_embeddings().weight is embedding
    # The head is read whole, the embedding only where it is looked up. Norms moved elsewhere.
    assert 0.95 * floor < weight_bytes(model) <= floor


def test_originals_hold_no_memory_afterwards() -> None:
    model = new_model("llama")
    layers = [each for each in model.modules() if isinstance(each, nn.Linear)]
    prepare(model, "packed")
    assert all(layer.weight is None for layer in layers)


def test_what_cannot_be_packed_stays_and_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    model = new_model("llama", dtype=torch.float64)
    expected = scores(model, some_prompt(12))
    done = prepare(model, "packed")
    assert done.linears == 0 and done.left == {"weights in float64": 3 * 7 + 1}
    assert done.as_json()["left"] == {"weights in float64": 22}
    torch.testing.assert_close(scores(model, some_prompt(12)), expected)


def test_experts_stay_and_are_reported() -> None:
    done = prepare(new_model("mixtral"), "packed")
    assert done.linears > 0
    assert any("more than two dimensions" in reason for reason in done.left)


def test_a_missing_operator_leaves_the_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: PackedLinear, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        raise RuntimeError("no such operator\nlong story")

    monkeypatch.setattr(block_layers, "unavailable", lambda: "no library")
    monkeypatch.setattr(PackedLinear, "__init__", broken)
    model = new_model("llama")
    done = prepare(model, "packed")
    assert done.left == {"torch does not support this product here (no such operator)": 22}
    new_target(model)


def test_a_stand_in_that_computes_something_else_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(block_layers, "unavailable", lambda: "no library")
    monkeypatch.setattr(PackedLinear, "forward", lambda self, rows: F.linear(rows, self._wrong))
    monkeypatch.setattr(
        PackedLinear, "_wrong", property(lambda s: torch.ones(s.out_features, s.in_features)), False
    )
    with pytest.raises(ModelError, match='weights="native"'):
        prepare(new_model("llama"), "packed")


def test_a_model_that_takes_no_plain_tokens_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(model: PreTrainedModel) -> torch.Tensor:
        raise ValueError("needs pictures")

    monkeypatch.setattr(preparing, "trial", refuse)
    done = prepare(new_model("llama"), "packed")
    assert done.weights == "native" and "needs pictures" in next(iter(done.left))


@pytest.mark.parametrize("weights", ["int9", "", "Packed"])
def test_unknown_weights_are_refused(weights: str) -> None:
    with pytest.raises(UsageError, match=r"unknown weights .* use one of auto, native"):
        prepare(new_model("llama"), weights)


def test_without_the_library_one_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.kernels.block_layers.unavailable", lambda: "was not built")
    with pytest.raises(UsageError, match="cannot run with int8 weights here: was not built"):
        prepare(new_model("llama"), "int8")


@pytest.mark.parametrize("weights", ["int4", "int8"])
def test_sizes_that_are_no_whole_groups_are_filled_up(weights: str) -> None:
    needs_kernels(weights)
    done = prepare(new_model("llama", intermediate_size=40, num_hidden_layers=1), weights)
    assert not done.left


def test_unknown_weights_do_not_wait_for_the_model(tmp_path: FilePath) -> None:
    with pytest.raises(UsageError, match="unknown weights"):
        paceline.load(str(tmp_path / "missing"), weights="int3")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("kind", [PlainLinear, PackedLinear, PackedAndPlainLinear])
def test_products_are_those_of_linear(
    kind: type[FastLinear], biased: bool, dtype: torch.dtype
) -> None:
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this processor has no products in bfloat16")
    layer = nn.Linear(48, 80, bias=biased).to(dtype)
    fast = kind(layer.weight, layer.bias)
    for shape in [(1, 48), (1, 1, 48), (2, 3, 48), (1, 17, 48), (1, 200, 48)]:
        rows = torch.randn(shape).to(dtype)
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(fast(rows), layer(rows), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("kind", "limit"), [(Int8Linear, 0.02), (Int4Linear, 0.15)])
def test_quantised_products_are_close_and_rows_do_not_see_each_other(
    kind: type[FastLinear], limit: float
) -> None:
    needs_kernels(kind)
    layer = nn.Linear(128, 64)
    fast = kind(layer.weight, layer.bias)
    rows = torch.randn(1, 32, 128)
    rows[0, 5] *= 100  # an outlier in one row must not cost the others their precision
    out, expected = fast(rows), layer(rows)
    error = (out - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert float(error.max().detach()) < limit
    for width in (1, 2, 3, 4, 8, 16):
        alone = fast(rows[:, :width])
        assert torch.equal(alone, out[:, :width])


@pytest.mark.parametrize("exact", [False, True])
def test_the_output_head_of_four_bits_has_eight(exact: bool) -> None:
    needs_kernels("int4")
    model = new_model("llama", **ROUND)
    assert prepare(model, "int4", exact=exact).weights == "int4"
    assert type(model.get_output_embeddings()) is Int8Linear
    others = [each for each in model.base_model.modules() if isinstance(each, FastLinear)]
    assert others and all(type(each) is Int4Linear for each in others)


def test_a_draft_model_gets_four_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    needs_kernels("int4")
    model = new_model("llama", **ROUND)
    monkeypatch.setattr(preparing, "WORTH_CHOOSING", 0)
    assert prepare(model, exact=False).weights == "int4"
    assert type(model.get_output_embeddings()) is Int8Linear


def test_int8_reads_a_quarter_and_int4_less() -> None:
    needs_kernels("int8")
    sizes = {}
    for weights in ("packed", "int8", "int4"):
        model = new_model("llama", **ROUND)
        prepare(model, weights)
        sizes[weights] = weight_bytes(model)
    assert sizes["int8"] < 0.35 * sizes["packed"] and sizes["int4"] < sizes["int8"]


def test_passes_are_padded_to_what_costs_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_layers, "unavailable", lambda: "no library")
    model = new_model("llama")
    native = new_target(model)
    native.sync([some_prompt(9)])
    expected = native.score([EMPTY])[0]
    prepare(model, "packed")
    target = new_target(model)
    assert least_rows(model) == PackedLinear.min_rows == 4
    widths: list[int] = []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    target.sync([some_prompt(9)])
    rows = target.score([EMPTY])[0]
    assert rows.shape == (1, VOCAB)
    torch.testing.assert_close(rows, expected, rtol=1e-4, atol=1e-4)
    target.commit([paceline.records.Path((), (3,))])
    assert target.score([EMPTY])[0].shape == (1, VOCAB)
    assert target.score([Tree.chain([1, 2, 3, 4])])[0].shape == (5, VOCAB)
    assert widths[1:] == [4, 5]


def test_the_second_copy_is_kept_only_where_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    for slow in (PlainLinear, PackedLinear):
        clock = [0.0]

        def made(
            kind: Any, weight: torch.Tensor, bias: object, slow: object = slow, clock: list = clock
        ) -> Any:
            def measured(rows: torch.Tensor) -> None:
                assert len(rows) == kind.min_rows
                clock[0] += 2.0 if kind is slow else 1.0

            layer = PlainLinear(weight, None)
            layer.forward, layer.min_rows = measured, kind.min_rows
            return layer

        model = new_model("llama")
        with monkeypatch.context() as patch:
            patch.setattr("paceline.kernels.choice.perf_counter", lambda c=clock: c[0])
            patch.setattr("paceline.kernels.choice.make_linear", made)
            done = prepare(model, "packed+plain")
        assert done.plain_copy.startswith("dropped" if slow is PlainLinear else "kept")
        layers = [each for each in model.modules() if isinstance(each, FastLinear)]
        assert {layer.min_rows for layer in layers} == ({4} if slow is PlainLinear else {1})


def test_only_rms_norms_are_replaced() -> None:
    assert fast_norm(nn.LayerNorm(8)) is None
    model = new_model("gemma3")  # scales by one plus the weight
    norm = model.model.norm
    with torch.no_grad():
        norm.weight.normal_()
    fast = fast_norm(norm)
    assert fast is not None
    hidden = torch.randn(1, 3, 32) * torch.tensor([1e-6, 1.0, 1e4])[None, :, None]
    torch.testing.assert_close(fast(hidden), norm(hidden), rtol=1e-5, atol=1e-6)

    class OddRMSNorm(type(norm)):  # type: ignore[misc]
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return super().forward(hidden) + 1

    norm.__class__ = OddRMSNorm
    assert fast_norm(norm) is None
    assert fast_norm(model.model.layers[0].input_layernorm.to("meta")) is None  # on disk


def test_packing_refuses_other_devices() -> None:
    with pytest.raises(UnpackableError, match="weights on meta"):
        PackedLinear(torch.empty(4, 4, device="meta"), None)


def test_memory_favours_change_no_value(tmp_path: FilePath) -> None:
    new_model("llama", hidden_size=512, num_attention_heads=4).save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    before = [each.clone() for each in model.parameters()]
    FilePages().forget(model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_weight_memory_gives_every_tensor_its_own_bytes() -> None:
    memory = WeightMemory()
    sizes = [1, 63, 0, 64, 5 << 20, 3 << 20, 20 << 20, 7]
    made = [memory.empty(size) for size in sizes]
    del memory
    for number, each in enumerate(made):
        each.fill_(number)
    assert [len(each) for each in made] == sizes
    assert all(each.data_ptr() % 64 == 0 for each in made)
    assert all(bool((each == number).all()) for number, each in enumerate(made))


@needs_library
def test_matrices_move_once_and_keep_their_products() -> None:
    layer, rows, memory = Int4Linear(torch.randn(48, 64), None), torch.randn(3, 64), WeightMemory()
    before, place = layer(rows), layer.matrix.panels.data_ptr()
    move_matrices(layer, memory)
    moved = layer.matrix.panels.data_ptr()
    move_matrices(layer, memory)
    assert place != moved == layer.matrix.panels.data_ptr()
    assert torch.equal(layer(rows), before)


def test_written_weights_are_not_forgotten(tmp_path: FilePath) -> None:
    new_model("llama", hidden_size=512, num_attention_heads=4).save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        for each in model.parameters():
            each.fill_(7)
    FilePages().forget(model.parameters())
    assert all(bool((each == 7).all()) for each in model.parameters())


def test_accelerate_prepares_on_request_only() -> None:
    model = new_model("llama")
    prompt = torch.tensor([some_prompt(12)])
    expected = model.generate(prompt, max_new_tokens=12, do_sample=False)
    paceline.accelerate(model, "anpd")
    assert least_rows(model) == 1
    with pytest.raises(UsageError):
        paceline.accelerate(model, "anpd", weights="packed", nonsense=1)
    assert least_rows(model) == 1
    fast = paceline.accelerate(model, "anpd", weights="packed")
    assert any(isinstance(each, FastLinear) for each in model.modules())
    assert torch.equal(fast.generate(prompt, max_new_tokens=12, do_sample=False), expected)


HUNYUAN = {
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "num_experts": 4,
}
LONGCAT = {
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "expert_ffn_hidden_size"), 16),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 8),
    "ffn_hidden_size": 48,
    "num_layers": 2,
    "n_routed_experts": 4,
    "zero_expert_num": 2,
}


@pytest.mark.parametrize(
    ("family", "sizes"), [("HunYuanMoEV1", HUNYUAN), ("LongcatFlash", LONGCAT)]
)
def test_layers_whose_weights_others_read_keep_them(family: str, sizes: dict[str, int]) -> None:
    """Routers that look at the type of a weight, or multiply by it themselves."""
    common = {"vocab_size": VOCAB, "hidden_size": 32, "num_attention_heads": 4, "moe_topk": 2}
    sizes = {**common, "head_dim": 8, **sizes}
    config = getattr(transformers, f"{family}Config")(**sizes)
    config._experts_implementation = "eager"
    model = getattr(transformers, f"{family}ForCausalLM")._from_config(config).eval()
    ids = torch.tensor([[1, 2, 3, 4]])
    before = model(ids).logits
    done = prepare(model, "packed")
    assert done.linears and done.left["layers whose weights other code reads"]
    torch.testing.assert_close(model(ids).logits, before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("weights", "dtype", "words"),
    [
        ("native", torch.float32, "too large for float32: download or convert them again$"),
        ("packed", torch.float32, "too large for float32: download or convert them again$"),
        ("native", torch.bfloat16, "for bfloat16: .* again, or load it with dtype float32$"),
    ],
)
def test_damaged_weights_are_not_blamed_on_the_way_they_run(
    weights: str, dtype: torch.dtype, words: str
) -> None:
    for damage in (float("nan"), float("inf")):
        model = new_model("llama", dtype=dtype)
        with torch.no_grad():
            model.get_output_embeddings().weight[3] = damage
        with pytest.raises(ModelError, match=f"of LlamaForCausalLM are NaN or .* {words}"):
            new_target(model, preparation=prepare(model, weights))


def test_threads_may_share_a_prepared_model() -> None:
    """One thread asks for its second projection after another has made its own."""
    layers = [nn.Linear(4, 3, bias=False) for _ in range(2)]
    shared = SharedInput(PlainLinear(torch.cat([x.weight for x in layers]).detach(), None), (3, 3))
    mine, other = torch.randn(1, 4), torch.randn(1, 4)
    run = shared._run

    def interrupted(rows: torch.Tensor) -> torch.Tensor:
        made = run(rows)
        if rows is mine:
            shared.project(other, 0)
        return made

    shared._run = interrupted
    torch.testing.assert_close(shared.project(mine, 0), layers[0](mine))
