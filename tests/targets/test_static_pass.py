"""Passes of static shape against the ordinary ones; captures, played by a recorder for the CPU."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cpu_recorder import CpuRecorder, Refuses
from tests.helpers import Oracle, RandomTrees, as_walked, generate, play, trees
from tests.in_step import InStep, new_target
from tests.prompt_parts import host_on, saved_parts
from tests.tiny_models import VOCAB, new_model, some_prompt, tiny_model
from transformers import PreTrainedModel

from paceline.drafters import make_drafter
from paceline.kernels import cuda_graph
from paceline.kernels.cuda_graph import GraphRecorder
from paceline.loop import Generation
from paceline.records import Path
from paceline.sampling import Sampler
from paceline.stopping import Stopping
from paceline.targets import causal_lm, kv_cache, layout
from paceline.targets.layout import (
    STATIC_WIDTHS,
    PassLayout,
    TextRows,
    padded_width,
    static_slots,
)
from paceline.targets.pass_inputs import InputsInOne
from paceline.tree import EMPTY, ROOT, Tree

F32, F64 = torch.float32, torch.float64
CPU = torch.device("cpu")
NAMED = ["llama", "qwen2", "mistral", "gemma3", "gpt2", "phi"]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> type[CpuRecorder]:
    monkeypatch.setattr(cuda_graph, "recorder_for", lambda device: CpuRecorder())
    CpuRecorder.made = 0
    return CpuRecorder


each_way = pytest.mark.parametrize("way", ["run", "recorded"])


def choose(way: str, request: pytest.FixtureRequest) -> None:
    if way == "recorded":
        request.getfixturevalue("recorded")


def gap(rows: torch.Tensor, expected: torch.Tensor) -> float:
    assert rows.shape == expected.shape
    return float((rows - expected).abs().max() / expected.abs().max())


def random_tree(rng: random.Random, size: int, ids: int = VOCAB) -> Tree:
    return Tree(
        tuple(rng.randrange(ids) for _ in range(size)),
        tuple(rng.randrange(-1, node) for node in range(size)),
    )


def random_path(rng: random.Random, tree: Tree) -> Path:
    nodes = tree.path_to(rng.randrange(ROOT, len(tree)))
    return Path(nodes, (*(tree.tokens[node] for node in nodes), rng.randrange(VOCAB)))


def pair(model: PreTrainedModel, check: bool = False) -> tuple[InStep, InStep]:
    return (
        new_target(model, check=check, static=True),
        new_target(model, check=check, static=False),
    )


# ---- shapes ----


def test_widths_are_rounded_up_to_a_small_set() -> None:
    assert [padded_width(rows, static=True) for rows in (1, 2, 3, 5, 33, 128)] == [
        1, 8, 8, 8, 64, 128,
    ]  # fmt: skip
    assert padded_width(129, static=True) == 129
    assert padded_width(3) == 3
    assert padded_width(3, least=4) == 4
    assert padded_width(1, least=4, static=True) == 8


def test_slots_are_enough_and_few() -> None:
    sizes = {used: static_slots(used) for used in range(1, 20000)}
    assert all(slots >= used for used, slots in sizes.items())
    assert sorted(set(sizes.values())) == [256, 512, 1024, 2048, 4096, 8192, 12288, 16384, 20480]


def three_texts() -> PassLayout:
    rng = random.Random(0)
    pending = [[1, 2], [3], [4, 5, 6]]
    texts = [
        TextRows(start, cached, some, random_tree(rng, size))
        for start, cached, some, size in zip((64, 0, 32), (5, 0, 2), pending, (4, 0, 6))
    ]
    texts[-1] = replace(texts[-1], padding=20 - sum(map(len, texts)))
    return PassLayout(texts)


def seen_by(text: TextRows, row: int, window: int | None) -> set[int]:
    """Slots of a text's stretch that one of its rows may attend to, row by row, slot by slot."""
    chain, cached = len(text.pending), text.cached
    seen = {slot: slot for slot in range(cached)}  # slot -> position
    position = 0
    if row < chain + len(text.tree):
        at = min(row, chain - 1)
        seen |= {cached + i: cached + i for i in range(at + 1)}
        position = cached + at
        if row >= chain:
            for depth, node in enumerate(text.tree.path_to(row - chain), start=1):
                position = cached + chain - 1 + depth
                seen[cached + chain + node] = position
    else:
        seen[cached + row] = 0
    return {slot for slot, at in seen.items() if window is None or at > position - window}


@pytest.mark.parametrize("window", [None, 1, 3, 7])
def test_masks_let_a_row_see_its_own_text_and_nothing_else(window: int | None) -> None:
    layout = three_texts()
    inputs = InputsInOne(20, 64, CPU).fill(layout)
    mask, _ = inputs.masks({"all": window}, F32)
    assert isinstance(mask, torch.Tensor) and mask.shape == (1, 1, 20, 64)
    assert set(mask.unique().tolist()) == {0.0, torch.finfo(F32).min}
    for text, first in zip(layout.texts, layout.firsts):
        for row in range(len(text)):
            columns = (mask[0, 0, first + row] == 0).nonzero()[:, 0]
            slots = {int(inputs.columns[column]) - text.start for column in columns}
            assert slots == seen_by(text, row, window)


@pytest.mark.parametrize("window", [None, 1, 3, 7])
def test_rows_say_which_slots_they_see(window: int | None) -> None:
    layout = three_texts()
    first, count, extra = layout.stretches(window)
    assert count.min() >= 0
    for text, begin in zip(layout.texts, layout.firsts):
        for row in range(len(text)):
            at = begin + row
            slots = [*range(first[at], first[at] + count[at]), *extra[at]]
            assert slots == sorted(slots)
            own = {slot - text.start for slot in slots}
            if row < text.wanted:
                assert own == seen_by(text, row, window)
            else:  # padding, which nobody reads, sees what is surely a number
                assert own == {text.cached + row}


def test_inputs_keep_their_place() -> None:
    inputs = InputsInOne(4, 16, CPU)
    parts = inputs.tokens, inputs.where, inputs.seen
    places = [part.data_ptr() for part in parts]
    for text in ([1, 2], [3, 4]):
        other = TextRows(32, 3, [9], Tree.chain([5]))
        inputs.fill(PassLayout([TextRows(0, 7, text), other]), static=True)
        assert inputs.tokens.tolist() == [[*text, 9, 5]]
        assert inputs.where.tolist() == [7, 8, 35, 36]
    assert inputs.positions.tolist() == [[7, 8, 3, 4]]
    assert places == [part.data_ptr() for part in parts]


# ---- the same rows as in the ordinary way ----


@pytest.mark.parametrize(
    ("way", "attention"), [("run", "sdpa"), ("recorded", "sdpa"), ("recorded", "eager")]
)
@pytest.mark.parametrize("name", NAMED)
def test_the_rows_are_those_of_the_ordinary_pass(
    name: str, attention: str, way: str, request: pytest.FixtureRequest
) -> None:
    """Chains, trees, nothing; commits of branching paths; rollbacks; beyond every window."""
    choose(way, request)
    rng = random.Random(1)
    targets = pair(tiny_model(name, attention))
    text = some_prompt(21)
    for step in range(24):
        if step % 8 == 0:
            text = text[: len(text) - step // 2]  # the cache rolls back
            for target in targets:
                target.sync([text])
        size = rng.choice([0, 1, 3, 6])
        tree = random_tree(rng, size)
        if step % 3 == 0:
            tree = Tree.chain(tree.tokens)
        static, plain = (target.score([tree])[0] for target in targets)
        assert gap(static, plain) < 1e-5
        path = random_path(rng, tree)
        for target in targets:
            target.commit([path])
        text += path.tokens
    assert targets[0].graphs["shapes"] <= 5
    assert targets[1].graphs == {"static": False}


@each_way
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_the_rows_of_a_ragged_batch_are_those_of_the_ordinary_pass(
    name: str, way: str, request: pytest.FixtureRequest
) -> None:
    choose(way, request)
    rng = random.Random(2)
    targets = pair(tiny_model(name))
    texts = [some_prompt(length, seed=length) for length in (3, 26, 9)]
    for contexts in (texts, texts[::-1], texts[1:], [[*texts[1], 4]]):
        for target in targets:
            target.sync(contexts)
        for _ in range(4):
            forest = [random_tree(rng, rng.choice([0, 2, 5])) for _ in contexts]
            for static, plain in zip(*(target.score(forest) for target in targets)):
                assert gap(static, plain) < 1e-5
            paths = [random_path(rng, tree) for tree in forest]
            for target in targets:
                target.commit(paths)
        for slot in targets[0].slots:  # alone: a pass of the same shape, elsewhere in the cache
            tree = random_tree(rng, 5)
            static, plain = (target.score({slot: tree})[slot] for target in targets)
            assert gap(static, plain) < 1e-5


# Three symbols and shared beginnings: synced texts often continue, extend or cut cached ones.
some_texts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=3)


@pytest.mark.parametrize("slots", [4, 256])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_after_any_history_replayed_rows_are_those_of_the_ordinary_pass(
    slots: int, recorded: object, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    """Syncs, passes with any trees, commits of any paths, passes that nobody commits. With slots
    in steps of four, most passes have a shape of their own, else nearly all are replayed."""
    monkeypatch.setattr(layout, "FEWEST_SLOTS", slots)
    targets = pair(tiny_model("mistral", "sdpa", F64))
    contexts: list[list[int]] = []
    for step in range(data.draw(st.integers(1, 8))):
        if step == 0 or data.draw(st.booleans()):
            contexts = data.draw(some_texts)
            for target in targets:
                target.sync(contexts)
        forest = [data.draw(trees(max_size=6, vocab_size=3)) for _ in contexts]
        for static, plain in zip(*(target.score(forest) for target in targets)):
            assert gap(static, plain) < 1e-10
        if data.draw(st.booleans()):
            paths = []
            for tree in forest:
                nodes = tree.path_to(data.draw(st.integers(ROOT, len(tree) - 1)))
                bonus = data.draw(st.integers(0, 2))
                paths.append(Path(nodes, (*(tree.tokens[node] for node in nodes), bonus)))
            for target in targets:
                target.commit(paths)


@each_way
def test_a_text_may_grow_over_many_sizes_of_the_cache(
    way: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its storage moves, and what was captured on the old one must not be replayed."""
    choose(way, request)
    monkeypatch.setattr(causal_lm, "STATIC_ROOM", 0)
    monkeypatch.setattr(kv_cache, "_AHEAD", 1)  # as on a GPU
    rng = random.Random(3)
    model = new_model("llama", "sdpa", F64, num_hidden_layers=2, max_position_embeddings=2048)
    targets = pair(model)
    text = some_prompt(150)
    for target in targets:
        target.sync([text])
    for _ in range(50):
        guessed = Tree.chain([rng.randrange(VOCAB) for _ in range(rng.choice([20, 30]))])
        static, plain = (target.score([guessed])[0] for target in targets)
        assert gap(static, plain) < 1e-10
        path = random_path(rng, guessed)
        for target in targets:
            target.commit([path])
        text += path.tokens
    assert len(text) > 600
    for target in targets:
        target.sync([some_prompt(120, seed=9)])
    for token in range(6):
        guessed = Tree.chain([rng.randrange(VOCAB) for _ in range(20)])
        static, plain = (target.score([guessed])[0] for target in targets)
        assert gap(static, plain) < 1e-10
        for target in targets:
            target.commit([Path((), (token,))])
    assert targets[0].graphs["shapes"] == 3  # of 256, 512 and 1024 slots
    if way == "recorded":
        # Once per shape, and again where the cache moved within one.
        assert CpuRecorder.made == targets[0].graphs["captured"] <= 6


def test_rows_that_somebody_keeps_are_not_overwritten(recorded: object) -> None:
    """A consumer may keep the rounds of a whole text."""
    target = new_target(tiny_model("llama"), check=False, static=True)
    target.sync([some_prompt(9)])
    target.score([EMPTY])
    target.commit([Path((), (3,))])
    kept = [target.score([Tree.chain([token])])[0] for token in (1, 2, 3)]
    values = [rows.clone() for rows in kept]
    target.score([Tree.chain([4])])
    assert all(torch.equal(rows, value) for rows, value in zip(kept, values))
    assert not torch.equal(kept[0][1], kept[1][1])


# ---- whole texts ----


@pytest.mark.parametrize(
    ("name", "way"),
    [("llama", "run"), *((name, "recorded") for name in ("llama", "gemma3", "gpt2"))],
)
def test_the_text_is_that_of_plain_decoding_in_the_ordinary_way(
    name: str, way: str, request: pytest.FixtureRequest
) -> None:
    choose(way, request)
    model, prompt = tiny_model(name, "sdpa", F64), some_prompt(20)
    for sampler in (Sampler(), Sampler(seed=3, temperature=0.9, top_p=0.95)):
        ordinary = new_target(model, static=False)
        plain, _, _ = generate(ordinary, make_drafter("plain"), prompt, 20, sampler=sampler)
        static = new_target(model, static=True)  # with the self-check
        for drafter in (
            make_drafter("plain"),
            make_drafter("anpd:branches=3"),
            Oracle([*prompt, *plain], VOCAB, siblings=2),
            RandomTrees(VOCAB, seed=1),
        ):
            output, _, _ = generate(static, drafter, prompt, 20, sampler=sampler, budget=9)
            assert output == plain
        assert static.graphs["failed"] is None
        assert static.graphs["shapes"] <= len(STATIC_WIDTHS)


@each_way
def test_the_texts_of_a_batch_are_those_of_the_ordinary_way(
    way: str, request: pytest.FixtureRequest
) -> None:
    """Lengths, limits and drafters differ, so texts end at different times."""
    choose(way, request)
    model = tiny_model("gemma3", "sdpa", F64)
    prompts = [some_prompt(length, seed=length) for length in (3, 26, 9, 1)]
    outputs = []
    for target in pair(model, check=True):
        drafters = [
            make_drafter("anpd:branches=2"),
            make_drafter("pld"),
            RandomTrees(VOCAB, seed=3),
            make_drafter("plain"),
        ]
        generations = [
            Generation(prompt, drafter, Stopping(limit))
            for prompt, drafter, limit in zip(prompts, drafters, (14, 5, 9, 11), strict=True)
        ]
        play(target, generations, budget=9)
        outputs.append([generation.output for generation in generations])
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_text_may_fill_the_models_context_to_the_last_position(
    name: str, recorded: object
) -> None:
    """Rows and slots are padded beyond it; positions are not."""
    longest = {"llama": {"max_position_embeddings": 32}, "gpt2": {"n_positions": 32}}[name]
    model = new_model(name, "sdpa", F64, **longest)
    static, plain = pair(model, check=True)
    prompt = some_prompt(20)
    expected, _, _ = generate(plain, make_drafter("plain"), prompt, 1000)
    for drafter in (make_drafter("plain"), Oracle([*prompt, *expected, *[1] * 50], VOCAB)):
        output, _, reason = generate(static, drafter, prompt, 1000)
        assert (output, reason) == (expected, "length")
        assert len(prompt) + len(output) == 32


def test_a_long_text_has_few_shapes(recorded: object) -> None:
    model = new_model("llama", "sdpa", F32, num_hidden_layers=1, max_position_embeddings=2048)
    target = new_target(model, check=False, static=True)
    generate(target, RandomTrees(VOCAB, seed=1), some_prompt(40), 700, budget=40)
    assert target.graphs["failed"] is None
    # Widths of up to 41 rows at 256, 512 and 1024 slots.
    assert 3 <= target.graphs["captured"] <= target.graphs["shapes"] <= 3 * 7


@each_way
def test_virtual_tokens_come_in_static_shapes_too(way: str, request: pytest.FixtureRequest) -> None:
    """Also those that are added when passes have been captured already."""
    choose(way, request)
    model, prompt = tiny_model("gemma3", "sdpa", F64), some_prompt(20)
    static, ordinary = pair(model, check=True)
    rng = random.Random(3)
    generator = torch.Generator().manual_seed(4)
    ids = VOCAB
    for count in (2, 3):
        ids += count
        embeddings = torch.randn(count, 32, dtype=F64, generator=generator)
        assert ordinary.add_virtual_tokens(embeddings) == static.add_virtual_tokens(embeddings)
        for target in (ordinary, static):
            target.sync([prompt])
            target.score([EMPTY])
            target.commit([Path((), (1,))])
        for _ in range(4):
            tree = random_tree(rng, 7, ids)
            expected, rows = ordinary.score([tree])[0], static.score([tree])[0]
            assert torch.allclose(rows, expected, rtol=1e-9, atol=1e-9)
        assert static.graphs["failed"] is None and static.graphs["shapes"] >= 1


@each_way
def test_prompt_tokens_guess_in_static_shapes(way: str, request: pytest.FixtureRequest) -> None:
    choose(way, request)
    model, prompt = tiny_model("llama", "sdpa", F64), some_prompt(20)
    static, ordinary = pair(model, check=True)
    expected, _, _ = generate(ordinary, make_drafter("plain"), prompt, 30)
    parts = saved_parts(3, 2, vocab=VOCAB)
    rounds = []
    for target in (ordinary, static):
        drafter = make_drafter(f"ppd:parts={parts},size=20", host_on(target))
        output, played, _ = generate(target, drafter, prompt, 30)
        assert output == expected
        rounds.append(as_walked(played))
    assert rounds[0] == rounds[1]
    assert static.graphs["shapes"] > 0


# ---- passes that stay ordinary ----


def test_prompts_and_wide_trees_have_no_static_shape() -> None:
    model = tiny_model("llama", "sdpa", F64)
    target = new_target(model, check=False, static=True)
    rng = random.Random(5)
    target.sync([some_prompt(20)])
    target.score([EMPTY])  # with the prompt
    target.commit([Path((), (1,))])
    target.score([random_tree(rng, 128)])
    assert target.graphs["shapes"] == 0
    target.score([random_tree(rng, 127)])
    assert target.graphs["shapes"] == 1


def test_where_a_capture_fails_passes_go_on_in_the_ordinary_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cuda_graph, "recorder_for", lambda device: Refuses())
    model, prompt = tiny_model("llama", "sdpa", F64), some_prompt(20)
    expected, _, _ = generate(new_target(model), make_drafter("plain"), prompt, 12)
    target = new_target(model, check=False, static=True)
    output, _, _ = generate(target, make_drafter("plain"), prompt, 12)
    assert output == expected
    failed = "RuntimeError: operation not permitted when stream is capturing"
    assert target.graphs == {"static": True, "shapes": 1, "captured": 0, "failed": failed}


def test_a_pass_that_was_interrupted_is_not_kept(recorded: object) -> None:
    model = new_model("llama", "sdpa", F64, num_hidden_layers=2)
    static, plain = pair(model)
    text = some_prompt(20)
    for target in (static, plain):
        target.sync([text])
        target.score([EMPTY])
        target.commit([Path((), (7,))])

    def interrupt(module: Any, args: Any) -> None:
        raise KeyboardInterrupt

    handle = model.model.layers[1].register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        static.score([EMPTY])
    handle.remove()
    assert static.graphs["captured"] == 0
    for tree in (EMPTY, EMPTY):
        assert gap(static.score([tree])[0], plain.score([tree])[0]) < 1e-10
    assert static.graphs["captured"] == 1


def test_shapes_are_static_by_default_on_a_gpu_only() -> None:
    target = new_target(tiny_model("llama"), check=False)
    assert target.static is False
    assert target.graphs == {"static": False}


# ---- on a GPU ----


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [F32, torch.bfloat16])
@pytest.mark.parametrize("name", NAMED)
def test_a_gpu_replays_what_it_runs(name: str, dtype: torch.dtype) -> None:
    model = new_model(name, "sdpa", dtype).to("cuda")
    targets = pair(model, check=True)
    assert new_target(model, check=False).static
    rng, text = random.Random(1), some_prompt(21)
    for target in targets:
        target.sync([text])
    for _ in range(30):
        tree = random_tree(rng, rng.choice([0, 1, 3, 7]))
        static, plain = (target.score([tree])[0] for target in targets)
        assert gap(static.float(), plain.float()) < (1e-3 if dtype == F32 else 5e-2)
        path = random_path(rng, tree)
        for target in targets:
            target.commit([path])
    graphs = targets[0].graphs
    assert graphs["failed"] is None
    assert 1 <= graphs["captured"] <= 8


@pytest.mark.gpu
def test_a_function_that_waits_for_the_device_is_not_recorded() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    number = torch.ones(3, device=device)
    before = torch.cuda.current_stream()
    with pytest.raises(RuntimeError):
        GraphRecorder(device).record(lambda: number * number.sum().item())
    assert torch.cuda.current_stream() == before
    replay = GraphRecorder(device).record(lambda: number * 2)
    number.fill_(4)
    assert replay().tolist() == [8, 8, 8]
