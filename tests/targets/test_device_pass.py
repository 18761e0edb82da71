"""Passes as few operators of torch, which a GPU runs, tested on the CPU."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tests.in_step import InStep
from tests.targets.test_static_pass import CpuRecorder, gap, random_path, random_tree
from tests.tiny_models import new_model, some_prompt
from torch import nn
from transformers import PreTrainedModel

from paceline.errors import ModelError, UsageError
from paceline.kernels import cuda_graph
from paceline.kernels.programs.merging import merged
from paceline.kernels.programs.steps import Join, Kind, Op, Operand, Step, Value
from paceline.targets import model_pass
from paceline.targets.causal_lm import CausalLMTarget
from paceline.targets.kv_cache import TreeCache
from paceline.targets.one_call import device_pass
from paceline.targets.one_call.device_pass import device_steps
from paceline.targets.one_call.recording import UnfitError
from paceline.targets.trials import self_check
from paceline.testing import check_target
from paceline.tree import Tree

F64 = torch.float64
FAMILIES = [
    *("llama", "qwen2", "qwen3", "mistral", "gemma", "gemma3", "gpt2", "gpt_neox", "phi", "phi3"),
    *("starcoder2", "ministral3", "cohere", "olmo2"),
]


def on_device(model: PreTrainedModel) -> CausalLMTarget:
    """A target that runs as on a GPU, but for the captures."""
    target = CausalLMTarget(model, static=True, compiled=False, check=False)
    target._pass.use_on_device(device_steps(model, target._pass.windows))
    return target


@pytest.fixture(params=["run", "recorded"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "recorded":
        monkeypatch.setattr(cuda_graph, "recorder_for", lambda device: CpuRecorder())
    return str(request.param)


@pytest.mark.parametrize(
    ("name", "way"),
    [
        *((name, "run") for name in FAMILIES),
        *((name, "recorded") for name in ("llama", "gemma3", "gpt2")),
    ],
    indirect=["way"],
)
def test_rows_are_those_of_the_own_forward(name: str, way: str) -> None:
    """Trees, branching commits, rollbacks, beyond every window, while the pool grows."""
    rng, model = random.Random(1), new_model(name, "sdpa", F64)
    targets = InStep(on_device(model)), InStep(CausalLMTarget(model, compiled=False, check=False))
    text = some_prompt(30)
    for step in range(16):
        if step % 8 == 0:
            text = text[: len(text) - step // 2]
            for target in targets:
                target.sync([text, text[3:20]])
        forest = [random_tree(rng, rng.choice([0, 1, 3, 6])) for _ in range(2)]
        for found, expected in zip(*(target.score(forest) for target in targets), strict=True):
            assert gap(found, expected) < 1e-5  # norms and tables are kept in float32
        paths = [random_path(rng, tree) for tree in forest]
        for target in targets:
            target.commit(paths)
        text += paths[0].tokens


@pytest.mark.parametrize(
    ("name", "way"),
    [("llama", "recorded"), ("gemma3", "run")],
    indirect=["way"],
)
def test_the_contract_of_targets_holds(name: str, way: str) -> None:
    model = new_model(name, "sdpa", F64)
    check_target(lambda: on_device(model), tolerance=1e-5, schedules=1, steps=10)


def test_the_models_own_layers_share_the_merged_weights() -> None:
    model = new_model("qwen2", "sdpa", F64)
    ids = torch.tensor([some_prompt(12)])
    before = model(ids, use_cache=False).logits
    layer: Any = model.get_decoder().layers[0].self_attn
    on_device(model)
    whole = layer.q_proj.weight.untyped_storage().data_ptr()
    assert layer.k_proj.weight.untyped_storage().data_ptr() == whole
    assert torch.equal(model(ids, use_cache=False).logits, before)
    on_device(model)  # a second target finds them side by side
    assert layer.v_proj.weight.untyped_storage().data_ptr() == whole


def test_a_layer_takes_few_operators() -> None:
    target = on_device(new_model("llama", "sdpa", F64, num_hidden_layers=5))
    smaller = on_device(new_model("llama", "sdpa", F64, num_hidden_layers=4))
    runs = [len(each._pass.on_device._program._runs) for each in (target, smaller)]  # type: ignore[union-attr]
    # Norm, queries, keys and values, store, attention, product and sum; norm, gate and up, their
    # join, product and sum.
    assert runs[0] - runs[1] == 9


def test_outputs_of_layers_lie_beside_the_last_states(way: str) -> None:
    model = new_model("llama", "sdpa", F64)
    target, own = on_device(model), CausalLMTarget(model, compiled=False, check=False)
    prompt = some_prompt(9)
    found = []
    for each in (target, own):
        each.keep_states([1, 3])
        slot = each.open(prompt)
        each.score({slot: random_tree(random.Random(0), 3)})
        found.append(each.states(slot, (1, 3)).clone())
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-5)
    with pytest.raises(UsageError, match="layer 9"):
        target.keep_states([9])


@pytest.mark.parametrize(
    ("name", "attention", "reason"),
    [
        ("mixtral", "sdpa", "unsupported class"),
        ("gemma2", "eager", "capped scores"),
    ],
)
def test_what_does_not_fit_is_named(name: str, attention: str, reason: str) -> None:
    with pytest.raises(UnfitError, match=reason):
        on_device(new_model(name, attention, F64))


def test_layers_of_other_classes_do_not_fit() -> None:
    class Doubled(nn.Linear):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(rows)

    model = new_model("llama", "sdpa", F64)
    model.get_decoder().layers[1].mlp.up_proj.__class__ = Doubled  # type: ignore[index, union-attr]
    with pytest.raises(UnfitError, match="Doubled"):
        on_device(model)


def test_half_precision_is_near_the_exact_model() -> None:
    exact, model = new_model("llama", "sdpa", F64), new_model("llama", "sdpa", torch.bfloat16)
    prompt = some_prompt(30)
    target = on_device(model)
    slot = target.open(prompt)
    found = target.score({slot: Tree.chain([3, 4])})[slot].double()
    expected = exact(torch.tensor([[*prompt, 3, 4]]), use_cache=False).logits[0, -3:].detach()
    own = model(torch.tensor([[*prompt, 3, 4]]), use_cache=False).logits[0, -3:].detach().double()
    assert gap(found, expected) < 2 * gap(own, expected) + 1e-3
    with pytest.raises(UnfitError, match="half precision"):
        on_device(new_model("cohere", "sdpa", torch.float16))


def test_a_layer_with_a_hook_does_not_fit() -> None:
    model = new_model("llama", "sdpa", F64)
    model.get_decoder().layers[0].mlp.up_proj.register_forward_hook(lambda *_: None)  # type: ignore[index, union-attr]
    with pytest.raises(UnfitError, match="hooks"):
        on_device(model)


def test_what_fails_while_it_is_built_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of memory\nand more")

    monkeypatch.setattr(device_pass, "TorchProgram", fail)
    with pytest.raises(UnfitError, match=r"its steps \(RuntimeError: out of memory\)"):
        on_device(new_model("llama", "sdpa", F64))


def test_after_a_failed_check_the_own_forward_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captures of what failed are dropped, and the pool serves as an ordinary cache."""
    monkeypatch.setattr(cuda_graph, "recorder_for", lambda device: CpuRecorder())
    model = new_model("llama", "sdpa", F64)
    target, calls = on_device(model), []

    def check(target: Any, model: Any) -> None:
        self_check(target, model)
        calls.append(target._pass.on_device is not None)
        if len(calls) == 1:
            for _ in range(3):
                self_check(target, model)
            target._pass.on_device._program._runs[3] = lambda now: None  # would be noticed
            raise ModelError("it differs")

    monkeypatch.setattr(model_pass, "self_check", check)
    target._pass.check(target, model)
    assert calls == [True, False]
    assert target.describe().report["own_forward"] == "it differs"


def test_a_target_made_in_inference_mode_leaves_a_model_that_can_be_trained() -> None:
    model = new_model("llama", "sdpa", F64)
    with torch.inference_mode():
        on_device(model)
    ids = torch.tensor([some_prompt(9)])
    model(ids, labels=ids).loss.backward()
    assert model.get_decoder().layers[0].self_attn.q_proj.weight.grad is not None  # type: ignore[index, union-attr]


def test_positions_beyond_the_model_are_refused() -> None:
    rows = on_device(new_model("gpt2", "sdpa", F64))._pass.on_device
    assert rows is not None
    assert rows.reserve(256) == rows.reserve(10) == 1
    with pytest.raises(ValueError, match="position 256 is beyond"):
        rows.reserve(257)


def test_a_product_waits_for_its_sum_only_if_its_rows_stay_the_same() -> None:
    """The first of s1 = h + A(B h) and s2 = s1 + C h may not change h before C reads it."""
    h, b, ab, s1, c, s2 = (Value(number, 4, Kind.ROWS) for number in range(1, 7))
    of = {value: Operand(4, value) for value in (h, b, ab, s1, c, s2)}

    def made(op: Op, out: Value, *reads: Value, join: Join = Join.ALONE) -> Step:
        return Step(op, 4, out, [of[each] for each in reads], join=join)

    steps = [
        made(Op.EMBED, h),
        made(Op.PRODUCT, c, h),
        made(Op.MAP, b, h, h, join=Join.TIMES),
        made(Op.PRODUCT, ab, b),
        made(Op.MAP, s1, h, ab, join=Join.PLUS),
        made(Op.MAP, s2, s1, c, join=Join.PLUS),
    ]
    assert merged(steps).added == {steps[4]: steps[3]}


def test_a_pool_that_could_not_grow_is_as_before_and_grows_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = TreeCache(1)
    cache.reserve(4)
    like = torch.zeros(0, dtype=F64)
    cache.pool(heads=1, size=2, like=like)[:] = 5
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "new_zeros", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            cache.reserve(8)
    assert len(cache.pool(heads=1, size=2, like=like)) == 4
    cache.reserve(8)
    pool = cache.pool(heads=1, size=2, like=like)
    assert len(pool) == 8 and pool[:4].eq(5).all() and pool[4:].eq(0).all()


def test_a_pool_moves_whole_slots_and_keeps_them_when_it_grows() -> None:
    cache = TreeCache(2, hidden_size=3)
    cache.reserve(8)
    pool = cache.pool(heads=2, size=4, like=torch.zeros(0, dtype=F64))
    pool[:] = torch.arange(8, dtype=F64).view(8, 1, 1, 1, 1)
    cache.all_states()[:8] = torch.arange(8, dtype=F64)[:, None]
    cache.move([3, 5], [1, 2])
    cache.take(cache, 4, 0, 1)
    cache.reserve(16)
    expected = [4, 3, 5, 3, 4, 5, 6, 7, *[0] * 8]
    grown = cache.pool(heads=2, size=4, like=pool)
    assert grown[:, 1, 0, 1, 2].tolist() == expected
    assert cache.all_states()[:8, 0].tolist() == expected[:8]
    keys, values = cache.tensors()[1]
    assert keys.shape == values.shape == (1, 2, 16, 4)
    assert keys[0, 0, :, 0].tolist() == expected
    assert cache.slot_bytes == 8 * (2 * 2 * 2 * 4 + 3)
