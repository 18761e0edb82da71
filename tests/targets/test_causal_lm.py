"""The transformers target against the models' own forward and `generate`."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path as FilePath
from typing import Any

import pytest
import torch
import transformers
from accelerate import dispatch_model
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.c_library import needs_library
from tests.helpers import Oracle, RandomTrees, generate, play, token_path, trees
from tests.in_step import new_target
from tests.tiny_models import VOCAB, new_model, some_prompt, tiny_model
from transformers import (
    AutoModelForCausalLM,
    LlamaForCausalLM,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.integrations import deepspeed

from paceline.drafters import make_drafter
from paceline.errors import ModelError, UsageError
from paceline.loop import Generation
from paceline.protocols import Drafter
from paceline.records import Path
from paceline.sampling import Sampler
from paceline.stopping import Stopping
from paceline.targets import causal_lm, support, trials
from paceline.targets.engines import open_target
from paceline.training.methods.ppd import Ppd
from paceline.training.methods.settings import PpdSettings
from paceline.tree import EMPTY, ROOT, Tree

NAMED = ["llama", "qwen2", "qwen3", "mistral", "gemma3", "gpt2", "phi"]
WINDOWED = ["phi3", "starcoder2", "ministral3", "mixtral", "phimoe", "qwen3_moe"]
METHODS = ["plain", "anpd:branches=3", "lookahead"]

F32, F64 = torch.float32, torch.float64
each_attention = pytest.mark.parametrize("attention", ["sdpa", "eager"])


def tolerance(attention: str, dtype: torch.dtype) -> float:
    """Relative to the largest logit. Eager attention computes its softmax in single precision."""
    return 1e-10 if (attention, dtype) == ("sdpa", F64) else 1e-4


def gap(rows: torch.Tensor, expected: torch.Tensor) -> float:
    return float((rows - expected).abs().max() / expected.abs().max())


@torch.no_grad()
def own_row(model: PreTrainedModel, text: Sequence[int]) -> torch.Tensor:
    """The last row of the model's own forward: no cache, no mask, no positions."""
    logits: torch.Tensor = model(torch.tensor([list(text)]), use_cache=False).logits
    return logits[0, -1]


@torch.no_grad()
def own_rows(model: PreTrainedModel, text: Sequence[int], tree: Tree) -> torch.Tensor:
    """The own rows of the root and of every node. Padding after changes nothing before it."""
    paths = [[*text, *token_path(tree, node)] for node in range(ROOT, len(tree))]
    width = max(map(len, paths))
    padded = torch.tensor([[*path, *[0] * (width - len(path))] for path in paths])
    logits: torch.Tensor = model(padded, use_cache=False).logits
    return torch.stack([row[len(path) - 1] for row, path in zip(logits, paths, strict=True)])


def greedy(model: PreTrainedModel, prompt: Sequence[int], count: int) -> list[int]:
    """What transformers' `generate` says."""
    ids = torch.tensor([list(prompt)])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=count,
        pad_token_id=0,
        eos_token_id=-1,
    )
    tokens: list[int] = out[0, len(prompt) :].tolist()
    assert len(tokens) == count
    return tokens


def drafters(story: Sequence[int]) -> list[Drafter]:
    return [
        *map(make_drafter, METHODS),
        Oracle(story, VOCAB, siblings=2),
        Oracle(story, VOCAB, twins=1),
        RandomTrees(VOCAB, seed=1),
    ]


def random_tree(rng: random.Random, size: int, vocab_size: int = VOCAB) -> Tree:
    return Tree(
        tuple(rng.randrange(vocab_size) for _ in range(size)),
        tuple(rng.randrange(-1, node) for node in range(size)),
    )


class Passes:
    """Shapes [batch, width] of a model's forward passes while it is watched."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, int]] = []

    @property
    def widths(self) -> list[int]:
        return [width for _, width in self.shapes]


@contextmanager
def watched(model: PreTrainedModel) -> Iterator[Passes]:
    passes = Passes()

    def note(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        inputs = kwargs["inputs_embeds"] if ids is None else ids
        passes.shapes.append((inputs.shape[0], inputs.shape[1]))

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield passes
    finally:
        handle.remove()


# ---- rows and streams of every architecture ----


@pytest.mark.parametrize("dtype", [F32, F64])
@each_attention
@pytest.mark.parametrize("name", [*NAMED, *WINDOWED])
def test_every_row_of_a_tree_is_the_row_of_the_models_own_forward(
    name: str, attention: str, dtype: torch.dtype
) -> None:
    """Before and after a commit across branches, and beyond every window."""
    model = tiny_model(name, attention, dtype)
    target = new_target(model)
    rng = random.Random(0)
    text = some_prompt(22)
    target.sync([text])
    for size in (9, 0, 14):
        tree = random_tree(rng, size)
        (rows,) = target.score([tree])
        assert rows.shape == (size + 1, VOCAB)
        assert not rows.requires_grad
        assert gap(rows, own_rows(model, text, tree)) < tolerance(attention, dtype)
        nodes = tree.path_to(size - 1) if size else ()
        path = Path(nodes, (*(tree.tokens[node] for node in nodes), rng.randrange(VOCAB)))
        target.commit([path])
        text += path.tokens


@pytest.mark.parametrize(
    ("name", "attention"),
    [*((name, kind) for name in NAMED for kind in ("sdpa", "eager"))]
    + [(name, "sdpa") for name in WINDOWED],
)
def test_the_text_is_that_of_generate_with_every_drafter(name: str, attention: str) -> None:
    model = tiny_model(name, attention)
    prompt, count = some_prompt(20), 9
    expected = greedy(model, prompt, count)
    target = new_target(model)
    for drafter in drafters([*prompt, *expected]):
        output, _, _ = generate(target, drafter, prompt, count, references=[expected[2:8]])
        assert output == expected
    assert greedy(model, prompt, count) == expected  # the model itself was left as it was


@pytest.mark.parametrize("name", NAMED)
def test_a_sampled_text_is_that_of_plain_decoding_with_its_seed(name: str) -> None:
    model = tiny_model(name, "sdpa", F64)
    sampler = Sampler(seed=9, temperature=0.8, top_p=0.95, repetition_penalty=1.1)
    prompt = some_prompt(15, seed=2)
    story = list(prompt)
    for _ in range(16):
        story.append(sampler.draw(own_row(model, story), story))
    target = new_target(model)
    for drafter in drafters(story):
        output, rounds, _ = generate(target, drafter, prompt, 16, sampler=sampler)
        assert output == story[15:]
        if isinstance(drafter, Oracle):
            assert len(rounds) <= 3


@each_attention
@pytest.mark.parametrize("name", NAMED)
def test_the_texts_of_a_ragged_batch_are_those_that_generate_says_to_each(
    name: str, attention: str
) -> None:
    """Lengths, limits and drafters differ, so rows end at different times."""
    model = tiny_model(name, attention)
    target = new_target(model)
    prompts = [some_prompt(length, seed=length) for length in (3, 26, 9, 1, 14)]
    limits = [14, 5, 1, 9, 11]
    expected = [greedy(model, prompt, limit) for prompt, limit in zip(prompts, limits, strict=True)]
    drafter_list = [
        Oracle([*prompts[0], *expected[0]], VOCAB, siblings=2),
        make_drafter("anpd:branches=2"),
        RandomTrees(VOCAB, seed=3),
        Oracle([*prompts[3], *expected[3]], VOCAB),
        make_drafter("pld"),
    ]
    generations = [
        Generation(prompt, drafter, Stopping(limit))
        for prompt, drafter, limit in zip(prompts, drafter_list, limits, strict=True)
    ]
    play(target, generations, budget=9)
    assert [generation.output for generation in generations] == expected


def test_a_model_in_bfloat16_is_driven_too() -> None:
    model = tiny_model("llama", "sdpa", torch.bfloat16)
    target = new_target(model)
    text, tree = some_prompt(20), random_tree(random.Random(1), 9)
    target.sync([text])
    (rows,) = target.score([tree])
    assert gap(rows.float(), own_rows(model, text, tree).float()) < 0.05


# ---- the cache ----


@pytest.fixture(scope="module")
def small() -> PreTrainedModel:
    return new_model("llama", "sdpa", F64, num_hidden_layers=2)


# Three symbols and shared beginnings: synced texts often continue, extend or cut cached ones.
some_texts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=4)


@settings(max_examples=40)
@given(st.data())
def test_after_any_history_the_cache_is_as_good_as_a_fresh_one(
    small: PreTrainedModel, data: st.DataObject
) -> None:
    """Syncs, passes with any trees, commits of any paths, passes that nobody commits."""
    target = new_target(small, check=False)
    contexts: list[list[int]] = []
    for step in range(data.draw(st.integers(1, 6))):
        if step == 0 or data.draw(st.booleans()):
            contexts = data.draw(some_texts)
            target.sync(contexts)
        some = [data.draw(trees(max_size=6, vocab_size=3)) for _ in contexts]
        fresh = new_target(small, check=False)
        fresh.sync(contexts)
        scored, expected = target.score(some), fresh.score(some)
        for rows, fresh_rows, tree in zip(scored, expected, some, strict=True):
            assert rows.shape == (len(tree) + 1, VOCAB)
            assert gap(rows, fresh_rows) < 1e-10
        if data.draw(st.booleans()):
            paths = []
            for tree in some:
                nodes = tree.path_to(data.draw(st.integers(ROOT, len(tree) - 1)))
                bonus = data.draw(st.integers(0, 2))
                paths.append(Path(nodes, (*(tree.tokens[node] for node in nodes), bonus)))
            target.commit(paths)
            contexts = [[*text, *path.tokens] for text, path in zip(contexts, paths, strict=True)]
    for text, rows in zip(contexts, target.score([EMPTY] * len(contexts)), strict=True):
        assert gap(rows, own_row(small, text)[None]) < 1e-10


def test_growing_beyond_its_capacity_keeps_what_the_cache_holds(small: PreTrainedModel) -> None:
    """Capacity comes in steps of some hundred slots: the passes below grow it several times."""
    target = new_target(small)
    rng = random.Random(0)
    text = some_prompt(100)
    target.sync([text])
    for _ in range(6):
        tree = random_tree(rng, 60)
        (rows,) = target.score([tree])
        assert gap(rows[:1], own_row(small, text)[None]) < 1e-10
        assert gap(rows[-1:], own_row(small, [*text, *token_path(tree, 59)])[None]) < 1e-10
        guessed = [rng.randrange(VOCAB) for _ in range(40)]
        target.score([Tree.chain(guessed)])
        target.commit([Path(tuple(range(40)), (*guessed, 5))])
        text += [*guessed, 5]


def test_logits_are_computed_for_the_root_and_its_tree_and_not_for_the_prompt(
    small: PreTrainedModel,
) -> None:
    """Over a large vocabulary the logits of a long prompt would take gigabytes."""
    sizes: list[int] = []
    handle = small.lm_head.register_forward_pre_hook(
        lambda module, args: sizes.append(args[0].shape[1])
    )
    target = new_target(small, check=False)
    target.sync([some_prompt(90)])
    target.score([Tree.chain([1, 2, 3])])
    target.sync([some_prompt(90, seed=1), some_prompt(50, seed=2)])
    target.score([Tree.chain([1, 2, 3]), EMPTY])
    handle.remove()
    assert sizes == [4, 4 + 1]


def test_the_next_turn_reads_only_what_is_new(small: PreTrainedModel) -> None:
    target = new_target(small)
    prompt = some_prompt(40)
    output, _, _ = generate(target, make_drafter("anpd"), prompt, 10)
    question = [1, 2, 3, 4, 5]
    second = [*prompt, *output, *question]
    with watched(small) as passes:
        again, _, _ = generate(target, make_drafter("plain"), second, 4)
    # The last token of the output is the old root: it was said, but never read.
    assert passes.widths == [1 + len(question), 1, 1, 1]
    assert again == greedy(small, second, 4)


def test_a_text_that_was_cut_or_changed_is_read_from_there(small: PreTrainedModel) -> None:
    target = new_target(small)
    prompt = some_prompt(40)
    generate(target, make_drafter("anpd"), prompt, 10)
    for changed, unread in ((prompt[:25], 1), ([*prompt[:25], 63, 9, 9], 4), (prompt[:12], 1)):
        with watched(small) as passes:
            target.sync([changed])
            (rows,) = target.score([EMPTY])
        assert passes.widths == [min(unread, len(changed))]
        assert gap(rows, own_row(small, changed)[None]) < 1e-10


def test_the_same_text_again_reads_its_last_token_alone(small: PreTrainedModel) -> None:
    target = new_target(small)
    prompt = some_prompt(30)
    for first in (30, 1, 1):
        with watched(small) as passes:
            output, _, _ = generate(target, make_drafter("plain"), prompt, 3)
        assert passes.widths == [first, 1, 1]
        assert output == greedy(small, prompt, 3)


def test_a_batch_that_shares_a_prefix_reads_it_from_one_cached_text(
    small: PreTrainedModel,
) -> None:
    target = new_target(small)
    system = some_prompt(30)
    target.sync([[*system, 1]])
    target.score([EMPTY])
    target.commit([Path((), (2,))])
    texts = [[*system, 5, 6], [*system, 7], [*system, 8, 9, 10]]
    with watched(small) as passes:
        target.sync(texts)
        scored = target.score([EMPTY, Tree.chain([4]), EMPTY])
    assert passes.shapes == [(1, 2 + 1 + 1 + 3)]
    for text, rows in zip(texts, scored, strict=True):
        assert gap(rows[:1], own_row(small, text)[None]) < 1e-10


def test_rows_may_change_places_multiply_and_go(small: PreTrainedModel) -> None:
    target = new_target(small)
    one, two, three = some_prompt(8, seed=1), some_prompt(15, seed=2), some_prompt(11, seed=3)
    for texts in ([one, two, three], [three, one], [one, one, two], [two], [two, two, two, one]):
        with watched(small) as passes:
            target.sync(texts)
            scored = target.score([EMPTY] * len(texts))
        for text, rows in zip(texts, scored, strict=True):
            assert gap(rows, own_row(small, text)[None]) < 1e-10
        assert len(passes.widths) == 1
        target.commit([Path((), (1,)) for _ in texts])


def test_two_conversations_may_take_turns_on_one_target(small: PreTrainedModel) -> None:
    target = new_target(small)
    texts = [some_prompt(12, seed=1), some_prompt(17, seed=2)]
    for _ in range(3):
        for text in texts:
            output, _, _ = generate(target, make_drafter("anpd"), text, 5)
            assert output == greedy(small, text, 5)
            text += [*output, 3, 1]


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3"])
def test_a_text_like_that_of_the_self_check_is_scored_like_any_other(name: str) -> None:
    """What the self-check has read, perhaps through narrower windows, must not be reused."""
    model = tiny_model(name, "sdpa", F64)
    for length in (1, 4, 5, 9, 12):
        target = new_target(model)
        text = [(7 + 31 * step) % VOCAB for step in range(length)]
        target.sync([text])
        assert gap(target.score([EMPTY])[0], own_row(model, text)[None]) < 1e-10


@pytest.mark.parametrize("broken_layer", [0, 1])
@pytest.mark.parametrize("fails_at", range(1, 7))
def test_a_pass_that_fails_midway_leaves_a_usable_cache(
    fails_at: int, broken_layer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of memory, Ctrl-C: some layers have grown and been written to, others not."""
    monkeypatch.setattr(causal_lm, "PREFILL_CHUNK", 100)
    model = new_model("llama", "sdpa", F64, num_hidden_layers=2)
    target = new_target(model, check=False)
    prompts = [some_prompt(230, seed=1), some_prompt(30, seed=2)]
    expected = [greedy(model, prompt, 8) for prompt in prompts]
    passes = 0

    def interrupt(module: Any, args: Any) -> None:
        nonlocal passes
        passes += 1
        if passes == fails_at:
            raise KeyboardInterrupt

    handle = model.model.layers[broken_layer].mlp.register_forward_pre_hook(interrupt)
    first = [Generation(prompt, make_drafter("anpd"), Stopping(8)) for prompt in prompts]
    with pytest.raises(KeyboardInterrupt):
        play(target, first)
    handle.remove()
    second = [
        Generation(g.context, make_drafter("anpd"), Stopping(g.stopping.remaining)) for g in first
    ]
    play(target, second[::-1])
    said = [[*g.output, *later.output] for g, later in zip(first, second, strict=True)]
    assert said == expected


# ---- prompts in chunks ----


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 9, 13, 30])
def test_a_long_prompt_is_read_in_chunks(
    small: PreTrainedModel, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    monkeypatch.setattr(causal_lm, "PREFILL_CHUNK", 4)
    target = new_target(small, check=False)
    prompt = some_prompt(length)
    with watched(small) as passes:
        output, _, _ = generate(target, make_drafter("plain"), prompt, 5)
    assert output == greedy(small, prompt, 5)
    assert max(passes.widths) <= 4
    assert sum(passes.widths) == length + 4


def test_a_ragged_batch_is_read_in_chunks(
    small: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short texts of the batch are done while long ones are still being read."""
    monkeypatch.setattr(causal_lm, "PREFILL_CHUNK", 4)
    target = new_target(small, check=False)
    prompts = [some_prompt(length, seed=length) for length in (1, 30, 4, 5, 17)]
    expected = [greedy(small, prompt, 6) for prompt in prompts]
    generations = [Generation(prompt, make_drafter("anpd"), Stopping(6)) for prompt in prompts]
    play(target, generations)
    assert [generation.output for generation in generations] == expected


@pytest.mark.parametrize("dtype", [torch.float16, F32])
@each_attention
def test_a_text_that_waits_while_others_are_read_is_not_spoiled_by_its_padding(
    monkeypatch: pytest.MonkeyPatch, attention: str, dtype: torch.dtype
) -> None:
    """A padded row that sees nothing at all is NaN where scores and mask overflow half precision
    together; and a masked NaN is not nothing: 0 * NaN is NaN."""
    monkeypatch.setattr(causal_lm, "PREFILL_CHUNK", 4)
    model = new_model("llama", attention, F32, num_key_value_heads=4)
    with torch.no_grad():
        for layer in model.model.layers:  # a token's score of itself is far below zero
            layer.self_attn.q_proj.weight.mul_(4)
            layer.self_attn.k_proj.weight.copy_(-layer.self_attn.q_proj.weight)
    model = model.to(dtype)
    target = new_target(model, check=False)
    texts = [[5], some_prompt(5)]
    target.sync(texts)
    for text, rows in zip(texts, target.score([EMPTY, EMPTY]), strict=True):
        assert gap(rows, own_row(model, text)[None]) < 0.01


@pytest.mark.parametrize("name", ["mistral", "gemma3", "gpt2"])
def test_chunks_and_windows_go_together(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causal_lm, "PREFILL_CHUNK", 4)
    model = tiny_model(name, "sdpa", F64)
    prompt = some_prompt(27)
    expected = greedy(model, prompt, 8)
    for drafter in drafters([*prompt, *expected]):
        assert generate(new_target(model), drafter, prompt, 8)[0] == expected


# ---- virtual tokens ----


@pytest.mark.parametrize("name", ["llama", "gemma", "gemma3", "gpt2"])
def test_virtual_tokens_are_scored_by_their_own_embeddings(name: str) -> None:
    model = tiny_model(name, "sdpa", F64)
    virtual = torch.randn(3, 32, dtype=F64, generator=torch.Generator().manual_seed(4))
    target = new_target(model)
    assert target.capabilities == {
        "hidden_states",
        "layer_outputs",
        "shadow_tokens",
        "trees",
        "virtual_tokens",
    }
    assert target.add_virtual_tokens(virtual) == VOCAB
    text = some_prompt(14)
    tree = Tree((5, VOCAB + 2, VOCAB, 7, VOCAB + 1), (-1, 0, -1, 2, 3))
    target.sync([text])
    (rows,) = target.score([tree])
    embed = model.get_input_embeddings()
    for node in range(ROOT, len(tree)):
        parts = [
            virtual[token - VOCAB] if token >= VOCAB else embed(torch.tensor(token))
            for token in [*text, *token_path(tree, node)]
        ]
        with torch.no_grad():
            own = model(inputs_embeds=torch.stack(parts)[None], use_cache=False).logits[0, -1]
        assert gap(rows[node + 1], own) < 1e-9


_LOOKING_UP: dict[str, Any] = {
    "vocab_size": VOCAB,
    "vocab_size_per_layer_input": VOCAB,
    "hidden_size": 32,
    "hidden_size_per_layer_input": 8,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_kv_shared_layers": 2,
    "head_dim": 8,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 16,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_ALTERNATING: dict[str, Any] = {
    "laurel_rank": 4,
    "altup_num_inputs": 2,
    "activation_sparsity_pattern": [0.0] * 4,
    "intermediate_size": [48] * 4,
}


def looking_up(name: str) -> PreTrainedModel:
    """Each of its layers looks ids up, beside the embeddings."""
    own = _ALTERNATING if name == "Gemma3n" else {"intermediate_size": 48}
    config = getattr(transformers, f"{name}TextConfig")(**_LOOKING_UP, **own)
    kind = getattr(transformers, f"{name}ForCausalLM")
    model: PreTrainedModel = kind._from_config(config, attn_implementation="sdpa").eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for part in model.parameters():  # the vectors, too: a scale of zero would hide the layers'
            part.normal_(std=0.3, generator=generator)
    return model


@pytest.mark.parametrize("name", ["Gemma3n", "Gemma4"])
def test_a_model_whose_layers_look_tokens_up_has_no_virtual_tokens(name: str) -> None:
    """Gemma 3n would leave out what its layers add, for all rows of the pass, and say nothing."""
    model = looking_up(name)
    with pytest.raises(UsageError, match="cannot read prompt tokens: choose another method"):
        new_target(model).add_virtual_tokens(torch.randn(3, 32))
    with pytest.raises(UsageError, match="cannot read prompt tokens: train another method"):
        Ppd.check(PpdSettings(), model)
    if name == "Gemma4":
        return
    target = new_target(model)
    target.keep_states((0, 2))
    with pytest.raises(ModelError, match="does not expose its hidden states"):
        generate(target, make_drafter("plain"), some_prompt(9), 4)


def test_virtual_tokens_are_never_said(small: PreTrainedModel) -> None:
    virtual = torch.randn(4, 32, generator=torch.Generator().manual_seed(4))
    target = new_target(small)
    target.add_virtual_tokens(virtual)
    prompt = some_prompt(12)
    expected = greedy(small, prompt, 12)
    for drafter in (
        RandomTrees(VOCAB, seed=2, beyond=4),
        Oracle([*prompt, *expected], VOCAB, virtual=3),
    ):
        assert generate(target, drafter, prompt, 12, budget=20)[0] == expected


@pytest.mark.parametrize("name", ["gemma", "gemma3"])
def test_a_virtual_token_with_the_embedding_of_a_token_is_that_token(name: str) -> None:
    """As the model takes it: after the factor by which Gemma's embedding module scales."""
    model = tiny_model(name, "sdpa", F64)
    embed = model.get_input_embeddings()
    assert not torch.equal(embed(torch.tensor([9])), embed.weight[[9]])
    target = new_target(model)
    first = target.add_virtual_tokens(embed(torch.tensor([9, 4])))
    target.sync([some_prompt(14)])
    (rows,) = target.score([Tree((9, 4, first, first + 1), (-1, 0, -1, 2))])
    assert gap(rows[3:], rows[1:3]) < 1e-12
    (row,) = target.score([Tree.chain([first])])
    assert gap(row[1:], rows[1:2]) < 1e-12


def test_several_drafters_share_a_target(small: PreTrainedModel) -> None:
    target = new_target(small)
    some, others = torch.randn(3, 32), torch.randn(2, 32)
    assert target.add_virtual_tokens(some) == VOCAB
    assert target.add_virtual_tokens(others) == VOCAB + 3
    assert target.add_virtual_tokens(some.clone()) == VOCAB
    assert target.add_virtual_tokens(others[:1]) == VOCAB + 5
    target.sync([[1, 2, 3]])
    (rows,) = target.score([Tree.chain([VOCAB + 3])])
    (same,) = target.score([Tree.chain([VOCAB + 5])])
    assert torch.equal(rows, same)


@pytest.mark.parametrize("shape", [(2, 31), (32,), (0, 32), (1, 2, 32)])
def test_embeddings_of_another_size_are_refused(
    small: PreTrainedModel, shape: tuple[int, ...]
) -> None:
    with pytest.raises(UsageError, match="embeddings of 32 numbers for this model, got"):
        new_target(small).add_virtual_tokens(torch.zeros(shape))


def test_virtual_tokens_without_embeddings_are_refused(small: PreTrainedModel) -> None:
    target = new_target(small)
    target.sync([[1, 2, 3]])
    with pytest.raises(UsageError, match="only 0 ids"):
        target.score([Tree.chain([VOCAB])])


def test_a_virtual_token_beyond_the_given_embeddings_is_refused(small: PreTrainedModel) -> None:
    """On a GPU an index out of range is no exception but the end of the process."""
    target = new_target(small)
    target.add_virtual_tokens(torch.zeros(2, 32))
    target.sync([[1, 2, 3]])
    with pytest.raises(UsageError, match=f"{VOCAB + 2}"):
        target.score([Tree.chain([VOCAB + 2])])


# ---- limits and devices ----


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_text_may_fill_the_models_context_to_the_last_position(name: str) -> None:
    """Learned positions end there: a guess beyond would be an index out of range."""
    longest = {"llama": {"max_position_embeddings": 32}, "gpt2": {"n_positions": 32}}[name]
    model = new_model(name, "sdpa", F64, **longest)
    target = new_target(model)
    assert target.max_context == 32
    prompt = some_prompt(20)
    expected = greedy(model, prompt, 12)
    for drafter in drafters([*prompt, *expected, *[1] * 50]):
        output, _, reason = generate(target, drafter, prompt, 1000)
        assert output == expected
        assert reason == "length"


def test_a_model_placed_by_a_device_map_is_driven(
    small: PreTrainedModel, tmp_path: FilePath
) -> None:
    small.save_pretrained(tmp_path)
    prompt = some_prompt(12)
    expected = greedy(small, prompt, 10)
    placed = AutoModelForCausalLM.from_pretrained(tmp_path, device_map={"": "cpu"}, dtype=F64)
    assert generate(new_target(placed), make_drafter("anpd"), prompt, 10)[0] == expected
    # With more than one entry accelerate wraps every module, as it does over several GPUs.
    places = {name: "cpu" for name, _ in placed.model.named_children()}
    split = dispatch_model(
        placed,
        {"lm_head": "cpu", **{f"model.{name}": at for name, at in places.items()}},
        force_hooks=True,
    )
    assert hasattr(split.model.layers, "_hf_hook")
    assert generate(new_target(split), make_drafter("anpd"), prompt, 10)[0] == expected


def test_a_model_whose_weights_wait_on_disk_is_driven(
    small: PreTrainedModel, tmp_path: FilePath
) -> None:
    """Offloaded weights are on the device "meta", where no input must be sent."""
    small.save_pretrained(tmp_path / "model")
    offloaded = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", device_map={"": "disk"}, dtype=F64, offload_folder=tmp_path / "offload"
    )
    prompt = some_prompt(12)
    output, _, _ = generate(new_target(offloaded), make_drafter("anpd"), prompt, 10)
    assert output == greedy(small, prompt, 10)


# ---- models that cannot be driven ----


def t5() -> PreTrainedModel:
    config = T5Config(vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4)
    return T5ForConditionalGeneration(config).eval()


def flex() -> PreTrainedModel:
    model = new_model("llama")
    model.config._attn_implementation = "flex_attention"
    return model


def training() -> PreTrainedModel:
    return new_model("llama").train()


def mamba() -> PreTrainedModel:
    return new_model("mamba", "eager")


def linear() -> PreTrainedModel:
    return new_model("qwen3_next")


def local() -> PreTrainedModel:
    """Masks by cache slot inside the model: siblings push a node's past out of its window, and the
    rows of a ragged batch are misplaced. The trial is too short to see it."""
    return new_model("gpt_neo", "eager")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (t5, "^T5ForConditionalGeneration is an encoder-decoder model"),
        (mamba, "^MambaForCausalLM keeps a recurrent state"),
        (linear, "^Qwen3NextForCausalLM (keeps a recurrent state|has layers of type linear)"),
        (local, "^GPTNeoForCausalLM has layers of type local"),
        (flex, "^LlamaForCausalLM runs attention 'flex_attention'"),
        (training, r"^LlamaForCausalLM is in training mode.*call model\.eval\(\)"),
    ],
)
@pytest.mark.parametrize("check", [False, True])
def test_a_model_that_cannot_be_driven_is_refused_with_the_reason(
    make: Any, reason: str, check: bool
) -> None:
    """Without the trial as well: what a configuration tells needs no trial."""
    with pytest.raises(ModelError, match=reason):
        new_target(make(), check=check)


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("way", ["tensor parallelism", "FSDP", "ZeRO-3", "a whole model each"])
def test_processes_that_wait_for_each_other_in_a_pass_are_refused(
    way: str, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = new_model("llama")
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: processes)
    monkeypatch.setattr(deepspeed, "is_deepspeed_zero3_enabled", lambda: way == "ZeRO-3")
    model._tp_size = processes if way == "tensor parallelism" else None
    model._is_fsdp_managed_module = way == "FSDP"
    if processes == 1 or way == "a whole model each":
        support.check_supported(model)
    else:
        with pytest.raises(ModelError, match="load it whole in one process, or call its own"):
            support.check_supported(model)


class IgnoresMask(LlamaForCausalLM):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("attention_mask", None)
        return super().forward(*args, **kwargs)


class IgnoresPositions(LlamaForCausalLM):
    """Counts cache slots instead, as RoFormer does: wrong for all nodes but those of a chain."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("position_ids", None)
        return super().forward(*args, **kwargs)


class IgnoresCache(LlamaForCausalLM):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        cache = kwargs.pop("cache", kwargs.pop("past_key_values", None))
        mask = kwargs.get("attention_mask")
        if cache is not None and mask is not None:
            width = kwargs["input_ids"].shape[1]
            kwargs["attention_mask"] = mask[..., -width:]
        return super().forward(*args, **kwargs)


class SeesSiblings(LlamaForCausalLM):
    """Lets every row of a pass attend to all rows before it."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        mask = kwargs.get("attention_mask")
        if mask is not None:
            width, slots = mask.shape[-2:]
            causal = torch.ones(width, slots, dtype=torch.bool).tril(slots - width)
            kwargs["attention_mask"] = mask.masked_fill(causal, 0.0)
        return super().forward(*args, **kwargs)


@pytest.mark.parametrize("strength", [1.0, 0.25])
@pytest.mark.parametrize("dtype", [F32, F64, torch.bfloat16])
@pytest.mark.parametrize("kind", [IgnoresMask, IgnoresPositions, IgnoresCache, SeesSiblings])
def test_a_model_that_does_not_do_as_told_fails_the_self_check(
    kind: type[LlamaForCausalLM], dtype: torch.dtype, strength: float
) -> None:
    """Also where positions and masks move the logits by a tenth only, and weights are rough."""
    model = new_model("llama", "sdpa", F32, kind)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.mul_(strength)
    with pytest.raises(ModelError, match=f"^a tree pass of {kind.__name__} with sdpa attention"):
        new_target(model.to(dtype))


def test_a_row_that_is_no_number_in_one_trial_fails_the_self_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However good the others are."""
    count = 0

    def gaps(*arguments: Any, **settings: Any) -> torch.Tensor:
        nonlocal count
        count += 1
        return torch.tensor([0.0, float("nan") if count == 2 else 0.0])

    monkeypatch.setattr(trials, "_gaps", gaps)
    with pytest.raises(ModelError, match="a tree pass of LlamaForCausalLM"):
        new_target(new_model("llama", "sdpa", torch.bfloat16))


def test_autocast_is_the_rounding_that_the_self_check_allows_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trials, "_gaps", lambda *args, first: torch.tensor([0.05]))
    with pytest.raises(ModelError, match="a tree pass of LlamaForCausalLM"):
        new_target(new_model("llama"))
    with torch.autocast("cpu", torch.bfloat16):
        new_target(new_model("llama"))


@pytest.mark.parametrize(
    ("gaps", "needed"),
    [([0.1] * 7, 1), ([0.3] * 7, 3), ([0.95, 0.1], 2), ([0.95, 0.3, 2.0, 0.4, 0.5], 5)],
)
def test_a_self_check_of_quantised_weights_ends_when_it_is_settled(
    monkeypatch: pytest.MonkeyPatch, gaps: list[float], needed: int
) -> None:
    left = iter(gaps)
    monkeypatch.setattr(trials, "is_quantised", lambda model: True)
    monkeypatch.setattr(trials, "_gaps", lambda *args, first: torch.tensor([0.0, next(left)]))
    new_target(new_model("llama"))
    assert len(list(left)) == len(gaps) - needed


def test_a_window_that_a_model_names_but_does_not_look_through_spoils_no_row() -> None:
    """A stray "sliding_window" in a Llama's configuration, or Moshi's: it is wider than the texts
    of the trial, so only a trial with a narrow window can tell who slides. Refusing is right too:
    such a model's own `generate` drops what its forward would see."""
    model = new_model("llama", "sdpa", F64, sliding_window=16)
    text = some_prompt(30)
    try:
        target = new_target(model)
    except ModelError:
        return
    target.sync([text])
    assert gap(target.score([EMPTY])[0], own_row(model, text)[None]) < 1e-10


@pytest.mark.parametrize("family", ["mistral", "gemma3", "phi3", "llama"])
def test_windows_are_narrow_only_for_who_tries(family: str) -> None:
    """In another thread, the user's model may be generating."""
    config = new_model(family, sliding_window=16).config
    kind, before = type(config), config.to_dict()
    with ThreadPoolExecutor() as others, trials.narrow_windows(config):
        assert config.sliding_window == 4
        assert others.submit(lambda: config.sliding_window).result() == 16
        assert others.submit(lambda: deepcopy(config).to_dict()).result() == before
    assert type(config) is kind and config.sliding_window == 16


class Raises(LlamaForCausalLM):
    error: type[Exception] = AssertionError

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise self.error("no such pass")


@pytest.mark.parametrize("error", [AssertionError, KeyError, NotImplementedError, ValueError])
def test_a_model_that_cannot_take_the_pass_is_refused_whatever_it_raises(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """XLM asserts, others raise what they like: a traceback tells a user nothing."""
    monkeypatch.setattr(Raises, "error", error)
    with pytest.raises(ModelError, match=rf"^Raises cannot be driven .*{error.__name__}"):
        new_target(new_model("llama", kind=Raises))


class ReturnsTuples(LlamaForCausalLM):
    """As models do that are configured so."""

    def forward(self, *args: Any, return_dict: bool = False, **kwargs: Any) -> Any:
        found = super().forward(*args, return_dict=True, **kwargs)
        return found if return_dict else found.to_tuple()


def test_a_model_that_returns_tuples_unless_it_is_asked_is_driven() -> None:
    """As `generate` asks."""
    prompt, texts = some_prompt(12), list[list[int]]()
    for kind in (LlamaForCausalLM, ReturnsTuples):
        model = new_model("llama", "sdpa", F64, kind)
        texts.append(generate(new_target(model), make_drafter("anpd"), prompt, 10)[0])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("how", ["model.compile()", "model.forward = torch.compile(…)"])
def test_a_compiled_forward_that_cannot_take_the_pass_is_blamed(how: str) -> None:
    """As one compiled with fullgraph=True, or into CUDA graphs."""
    model = new_model("llama")

    def compiled(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("graph break")

    if how == "model.compile()":
        model._compiled_call_impl = compiled
    else:
        compiled._torchdynamo_orig_callable = model.forward  # type: ignore[attr-defined]
        model.forward = compiled
    with pytest.raises(ModelError, match=r"graph break.*load it again without torch\.compile"):
        new_target(model)


def test_a_refusal_does_not_advise_what_is_the_case_already() -> None:
    for attention, advised in (("sdpa", True), ("eager", False)):
        with pytest.raises(ModelError) as refused:
            new_target(new_model("llama", attention, kind=IgnoresMask))
        assert ('attn_implementation="eager"' in str(refused.value)) == advised


def test_a_rotary_embedding_that_changes_with_the_length_limits_the_text() -> None:
    """Phi-3's "longrope" has other angles for a pass that reaches beyond its original context, so
    a guess that reaches there would change the rows before it. The text has to end there."""
    model = tiny_model("phi3 longrope", "sdpa", F64)
    target = new_target(model)
    for length in (20, 31):
        prompt = some_prompt(length)
        expected = greedy(model, prompt, 40)
        for drafter in drafters([*prompt, *expected]):
            output, _, reason = generate(target, drafter, prompt, 40)
            assert output == expected[: 32 - length]
            assert reason == "length"
    with pytest.raises(UsageError, match=r"prompt has 32 tokens .* context is 32"):
        generate(target, make_drafter("plain"), some_prompt(32), 1)


@pytest.mark.parametrize("dtype", [F32, F64])
def test_single_precision_inside_a_model_in_double_is_not_taken_for_an_error(
    dtype: torch.dtype,
) -> None:
    model = tiny_model("gptj", "eager", dtype)
    prompt = some_prompt(20)
    expected = greedy(model, prompt, 10)
    output, _, _ = generate(new_target(model), make_drafter("anpd"), prompt, 10)
    assert output == expected


@needs_library
@pytest.mark.parametrize("family", ["StableLm", "Nemotron"])
def test_a_failed_check_leaves_nothing_to_the_next(family: str) -> None:
    """Their layers do not pass on what attention by text needs, so that the first check fails."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
    config = getattr(transformers, f"{family}Config")(vocab_size=VOCAB, **sizes, **heads)
    model = getattr(transformers, f"{family}ForCausalLM")._from_config(config).eval()
    target = open_target(model)
    assert not target.runs_as_opened
