"""Medusa and Chimera as they draft: what they propose is what their heads say of the whole text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from tests.c_library import needs_library
from tests.draft_hosts import Ticking
from tests.head_parts import saved_chimera, saved_heads, saved_medusa
from tests.helpers import naive_stream, play
from tests.tiny_models import VOCAB, some_prompt, tiny_model
from tests.trained_heads import learned
from transformers import PreTrainedModel

from paceline.drafters import (
    Chimera,
    ChimeraSettings,
    EagleSettings,
    Host,
    Medusa,
    MedusaSettings,
    check_method,
    make_drafter,
)
from paceline.drafters.ngram_cache import Ngram, State
from paceline.errors import UsageError
from paceline.loop import Generation
from paceline.planning.candidate_tree import likeliest
from paceline.protocols import Drafter
from paceline.records import Round, TextStart
from paceline.sampling import Sampler
from paceline.stopping import Stopping
from paceline.targets.causal_lm import CausalLMTarget
from paceline.tree import ROOT, Tree

HIDDEN, TINY = 32, "tiny"
MEDUSA = {"hidden": HIDDEN, "vocab": VOCAB, "fingerprint": TINY}


class Noted(Drafter):
    """A drafter whose texts and trees are kept."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.requires, self.sized_by = drafter.requires, drafter.sized_by
        self.layers = drafter.layers
        self.text: list[int] = []
        self.seen: list[tuple[list[int], Tree]] = []

    def start(self, text: TextStart) -> None:
        self.text = list(text.context)
        self._drafter.start(text)

    def observe_states(self, states: torch.Tensor) -> None:
        self._drafter.observe_states(states)

    def propose(self, budget: int) -> Tree:
        tree = self._drafter.propose(budget)
        self.seen.append((list(self.text), tree))
        return tree

    def observe(self, round: Round) -> None:
        self.text.extend(round.path.tokens)
        self._drafter.observe(round)


def own_states(model: PreTrainedModel, text: Sequence[int]) -> torch.Tensor:
    """[tokens, hidden]: what the output head reads in the model's plain forward."""
    states: torch.Tensor = model.get_decoder()(
        torch.tensor([list(text)]), use_cache=False
    ).last_hidden_state
    return states[0]


def host(target: CausalLMTarget) -> Host:
    return Host(target, TINY)


class Lookups:
    """Counts the n-grams that a drafter's store is asked for, and those that it must encode."""

    def __init__(self, drafter: Chimera) -> None:
        self.asked = self.encoded = 0
        store = drafter._greens
        states, encode = store.states, store._encode

        def counted_states(ngrams: Sequence[Ngram], keep: bool = True) -> list[State]:
            self.asked += len(set(ngrams))
            return states(ngrams, keep)

        def counted_encode(ngrams: Sequence[Ngram]) -> Sequence[State]:
            self.encoded += len(ngrams)
            return encode(ngrams)

        store.states, store._encode = counted_states, counted_encode


def first_children(tree: Tree) -> list[int]:
    """Tokens from the root on, always the likeliest child."""
    found, node = [], ROOT
    while children := tree.children.get(node):
        node = max(children.values(), key=lambda child: tree.weights[child])  # type: ignore[index]
        found.append(tree.tokens[node])
    return found


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_medusa_proposes_the_likeliest_paths_of_its_heads(name: str) -> None:
    model = tiny_model(name)
    target = CausalLMTarget(model, check=False)
    folder = str(saved_medusa(**MEDUSA))
    noted = Noted(Medusa(host(target), parts=folder, ranks=3))
    play(target, [Generation(some_prompt(9), noted, Stopping(16))], budget=12)
    heads = Medusa(host(target), parts=folder, weights="native")._heads
    assert not len(noted.seen[0][1])  # nothing was read yet
    assert sum(len(tree) for _, tree in noted.seen[1:-4]) > 10
    for text, tree in noted.seen[1:-4]:
        shares = heads(own_states(model, text[:-1])[-1:])[0].softmax(-1)
        for node in range(len(tree)):
            path = [tree.tokens[step] for step in tree.path_to(node)]
            product = 1.0
            for depth, token in enumerate(path):
                assert token in shares[depth].topk(3).indices.tolist()
                product *= float(shares[depth, token])
            assert tree.weights is not None
            assert tree.weights[node] == pytest.approx(product, rel=1e-3)


def test_a_drafter_between_texts_keeps_no_states_of_the_target() -> None:
    target = CausalLMTarget(tiny_model("llama"), check=False)
    drafter = Medusa(host(target), parts=str(saved_medusa(**MEDUSA)))
    play(target, [Generation(some_prompt(9), drafter, Stopping(16))], budget=12)
    assert drafter._state is None


@pytest.mark.parametrize("method", ["chimera", "eagle"])
def test_a_beam_for_which_there_is_no_memory_is_refused(method: str) -> None:
    check_method(f"{method}:beam=256")
    with pytest.raises(UsageError, match="beam must be at most 256, got 100000000"):
        check_method(f"{method}:beam=100000000")


def test_a_file_in_the_home_of_nobody_is_refused() -> None:
    target = CausalLMTarget(tiny_model("llama"), check=False)
    parts = str(saved_chimera(**MEDUSA))
    with pytest.raises(UsageError, match="cannot store n-gram states in ~nobody-here/file"):
        Chimera(host(target), parts=parts, spill="~nobody-here/file")


@torch.no_grad()
@pytest.mark.parametrize("method", ["chimera:depth=3", "eagle:depth=3", "medusa:ranks=3"])
def test_states_that_are_no_numbers_give_no_guesses(method: str) -> None:
    target = CausalLMTarget(tiny_model("llama"), check=False)
    parts = saved_heads(method.partition(":")[0], **MEDUSA)
    for weights in ("fastest", "native"):
        drafter = make_drafter(f"{method},parts={parts},weights={weights}", host(target))
        drafter.start(TextStart(some_prompt(9)))
        drafter.observe_states(torch.full((8, HIDDEN), torch.nan))
        assert not any(drafter.propose(20).weights or ())


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "cache", "beam"),
    [
        ("llama", None, 1),
        ("gpt2", None, 3),
        ("llama", 0, 3),
        ("gpt2", 20, 1),
        ("llama", 20, 3),
        ("llama", 1000, 1),
        ("gpt2", 1000, 3),
    ],
)
def test_chimera_proposes_what_its_model_says_of_the_whole_text(
    name: str, cache: int | None, beam: int
) -> None:
    """In one call, or level by level with n-grams that are looked up."""
    model = tiny_model(name)
    target = CausalLMTarget(model, check=False)
    folder = str(saved_chimera(**MEDUSA))
    by_level: dict[str, Any] = {} if cache is None else {"weights": "native"}
    drafter = Chimera(
        host(target),
        parts=folder,
        ranks=4,
        beam=beam,
        depth=4,
        least=0.0,
        cache=cache or 0,
        **by_level,
    )
    noted, lookups = Noted(drafter), Lookups(drafter)
    play(target, [Generation(some_prompt(9), noted, Stopping(16))], budget=20)
    chimera, compared = Chimera(host(target), parts=folder, weights="native")._model, 0
    for text, tree in noted.seen[1:-4]:
        chain = first_children(tree)
        # As in training: the whole text, the guesses after it, and a point before the root.
        whole = torch.tensor([[*text, *chain, 0, 0, 0]])
        matures = own_states(model, whole[0].tolist())[None]
        points = torch.tensor([[len(text) - 2]])
        logits = learned(chimera, whole, matures, points)[0][0, 0]
        for depth, token in enumerate(chain):
            assert int(logits[depth].argmax()) == token
            compared += 1
    assert compared > 10
    assert (lookups.encoded < lookups.asked) == bool(cache)


@needs_library
@pytest.mark.parametrize("vocabulary", [0, 9])
def test_medusas_tree_in_one_call_is_that_of_its_guesses(vocabulary: int) -> None:
    target = CausalLMTarget(tiny_model("llama"), check=False)
    folder = str(saved_medusa(**MEDUSA, vocabulary=vocabulary))
    for ranks, budget in ((1, 5), (4, 12), (10, 300), (60, 1)):
        noted = Noted(Medusa(host(target), parts=folder, ranks=ranks))
        play(target, [Generation(some_prompt(9), noted, Stopping(12))], budget=budget)
        heads = noted._drafter._heads  # type: ignore[union-attr]
        compared = 0
        for text, tree in noted.seen[1:]:
            state = own_states(target.model, text[:-1])[-1:]
            guesses = heads.guess(state, ranks)
            found = likeliest(guesses.probabilities, min(budget, len(tree)))
            # States come out of other products here, so nodes that are as likely may change places.
            assert tree.weights == pytest.approx(found.path_chances, rel=1e-3)
            expected = {
                tuple(guesses.tokens[level][rank] for level, rank in enumerate(path)): path_chance
                for path, path_chance in zip(found.paths, found.path_chances)
            }
            ways = [
                tuple(tree.tokens[at] for at in tree.path_to(node)) for node in range(len(tree))
            ]
            made = dict(zip(ways, tree.weights))
            assert len(made) == len(expected) == len(tree)
            least = min(found.path_chances, default=0.0)
            for path in made.keys() | expected.keys():
                one, other = made.get(path, least), expected.get(path, least)
                assert one == pytest.approx(other, rel=1e-3)
            compared += len(tree)
        assert compared > 5


def test_what_one_text_had_encoded_is_there_for_the_next() -> None:
    target, folder = CausalLMTarget(tiny_model("llama"), check=False), str(saved_chimera(**MEDUSA))
    place, encoded = host(target), []
    for settings in ({}, {}, {"cache": 50}, {}):
        drafter = Chimera(place, parts=folder, depth=4, least=0.0, weights="native", **settings)
        lookups = Lookups(drafter)
        target.forget()
        play(target, [Generation(some_prompt(9), drafter, Stopping(16))], budget=20)
        encoded.append(lookups.encoded)
    assert encoded[0] == encoded[2] > 0  # which have stores of their own
    assert encoded[1] == encoded[3] == 0
    assert not Chimera(host(target), parts=folder)._greens._memory


PROMPTS = [some_prompt(length, seed=length) for length in (2, 11, 6, 40)]


@cache
def _alone(sampler: Sampler) -> list[list[int]]:
    target = CausalLMTarget(tiny_model("llama", dtype=torch.float64), check=False)
    return [naive_stream(target, prompt, 12, sampler) for prompt in PROMPTS]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("method", ["medusa", "chimera", "eagle"])
def test_texts_of_a_batch_are_those_of_plain_decoding(method: str, temperature: float) -> None:
    target = CausalLMTarget(tiny_model("llama", dtype=torch.float64), check=False)
    sampler = Sampler(seed=5, temperature=temperature)
    where = Host(target, TINY, clock=Ticking(1e-3))
    generations = [
        Generation(
            prompt,
            make_drafter(method, where, parts=str(saved_heads(method, **MEDUSA))),
            Stopping(12),
            sampler,
        )
        for prompt in PROMPTS
    ]
    play(target, generations, budget=9)
    assert [generation.output for generation in generations] == _alone(sampler)


@pytest.mark.parametrize(
    ("kind", "wrong", "said"),
    [
        (ChimeraSettings, {"beam": 0}, "beam must be a whole number >= 1"),
        (ChimeraSettings, {"least": 2}, "least must be a number from 0 to 1, got 2"),
        (MedusaSettings, {"ranks": 0}, "ranks must be a whole number >= 1"),
        (EagleSettings, {"beam": 0}, "beam must be a whole number >= 1"),
        (EagleSettings, {"ranks": 0}, "ranks must be a whole number >= 1"),
        (EagleSettings, {"depth": -1}, "depth must be a whole number >= 0"),
        (EagleSettings, {"depth": 33}, "depth must be at most 32, got 33"),
        (EagleSettings, {"least": 2}, "least must be a number from 0 to 1, got 2"),
    ],
)
def test_bad_settings_are_named(kind: Any, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        kind(**wrong)
