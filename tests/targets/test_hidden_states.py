"""The states that drafters with heads look at: the model's own, wherever the text has gone."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Thread
from typing import Any

import pytest
import torch
from tests.helpers import RandomTrees, play
from tests.in_step import new_target
from tests.tiny_models import new_model, some_prompt, tiny_model
from torch import nn
from transformers import PreTrainedModel

from paceline.errors import UsageError
from paceline.integrations.known_model import hooks_of
from paceline.loop import Generation, decode
from paceline.protocols import HIDDEN_STATES, VIRTUAL_TOKENS
from paceline.records import Path, Round
from paceline.stopping import Stopping
from paceline.targets.engines import open_target
from paceline.targets.hidden_states import call_with_states
from paceline.targets.prepare import prepare
from paceline.targets.toy import ToyTarget
from paceline.targets.words import output_head
from paceline.tree import EMPTY, Tree

NAMED = ["llama", "qwen2", "mistral", "gemma3", "gpt2", "phi"]


class Watcher(RandomTrees):
    """Proposes random trees and keeps all that it is shown."""

    requires = frozenset({HIDDEN_STATES})

    def __init__(self, seed: int, vocab_size: int) -> None:
        super().__init__(vocab_size, seed)
        self.seen: list[tuple[list[int], torch.Tensor]] = []

    def observe_states(self, states: torch.Tensor) -> None:
        self.seen.append((list(self.text), states.clone()))


@torch.no_grad()
def own_states(model: PreTrainedModel, text: Sequence[int]) -> torch.Tensor:
    """[tokens, hidden]: what the output head reads in the model's plain forward."""
    states: torch.Tensor = model.get_decoder()(
        torch.tensor([list(text)]), use_cache=False
    ).last_hidden_state
    return states[0]


@torch.no_grad()
def own_outputs(model: PreTrainedModel, text: Sequence[int], layers: Sequence[int]) -> torch.Tensor:
    """[tokens, layers * hidden]: what these layers give in the model's plain forward."""
    found = model.get_decoder()(
        torch.tensor([list(text)]), use_cache=False, output_hidden_states=True
    ).hidden_states
    return torch.cat([found[each][0] for each in layers], dim=-1)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", NAMED)
def test_drafters_see_the_outputs_of_layers_beside_others_that_see_states(
    name: str, packed: bool
) -> None:
    """Texts of drafters that want other layers, or none, on one target."""
    model = new_model(name) if packed else tiny_model(name, dtype=torch.float64)
    plain = new_model(name) if packed else model
    target = open_target(model, weights="packed") if packed else new_target(model, check=False)
    watchers = [Watcher(seed, target.vocab_size) for seed in range(3)]
    watchers[1].layers, watchers[2].layers = (1,), (1, 2)
    prompts = [some_prompt(3 + 4 * number, seed=number) for number in range(3)]
    texts = [Generation(*each, Stopping(9)) for each in zip(prompts, watchers)]
    play(target, texts, budget=9)
    for number, watcher in enumerate(watchers):
        assert len(watcher.seen) >= 2
        for text, states in watcher.seen[1:]:
            if number == 2:
                states = states[:, : states.shape[1] // 2]  # the last layer's are normed there
            layers = watcher.layers[:1]
            expected = (
                own_outputs(plain, text[:-1], layers)
                if any(layers)
                else own_states(plain, text[:-1])
            )
            assert torch.allclose(states, expected, atol=1e-3 if packed else 1e-9)


def test_layers_are_seen_in_the_order_in_which_they_are_wanted() -> None:
    model = tiny_model("llama", dtype=torch.float64)
    target = new_target(model, check=False)
    watcher = Watcher(0, target.vocab_size)
    watcher.layers = (1, 0)
    play(target, [Generation(some_prompt(5), watcher, Stopping(6))], budget=4)
    text, states = watcher.seen[-1]
    expected = torch.cat([own_outputs(model, text[:-1], [1]), own_states(model, text[:-1])], -1)
    assert torch.allclose(states, expected, atol=1e-9)


def test_a_tied_output_head_may_have_biases() -> None:
    model = new_model("llama", tie_word_embeddings=True)
    bias = nn.Parameter(torch.randn(model.config.vocab_size), requires_grad=False)
    model.get_output_embeddings().bias = bias
    weights, found = output_head(model, torch.tensor([3, 1]))
    assert torch.equal(weights, model.get_input_embeddings().weight[[3, 1]])
    assert torch.equal(found, bias[[3, 1]])


def test_a_head_of_its_own_counts_whatever_the_configuration_says() -> None:
    """As in a model trained on with LoRA, in a copy of whose configuration it is tied."""
    model = new_model("llama", tie_word_embeddings=True)
    head = model.get_output_embeddings()
    head.weight = nn.Parameter(head.weight.detach().flip(0), requires_grad=False)
    weights, _ = output_head(model, torch.tensor([3, 1]))
    assert torch.equal(weights, head.weight[[3, 1]])
    assert not torch.equal(weights, model.get_input_embeddings().weight[[3, 1]])


def test_layers_that_there_are_not_are_refused() -> None:
    for packed in (False, True):
        model = new_model("llama")
        target = open_target(model, weights="packed") if packed else new_target(model, check=False)
        with pytest.raises(
            UsageError, match="expose the output of layer 77: choose another method"
        ):
            target.keep_states((1, 77))
        target.keep_states((1,))


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("name", NAMED)
def test_drafters_see_the_states_of_the_whole_text(name: str, static: bool) -> None:
    model = tiny_model(name, dtype=torch.float64)
    target = new_target(model, check=False, static=static)
    watchers = [Watcher(seed, target.vocab_size) for seed in range(3)]
    prompts = [some_prompt(length, seed=length) for length in (3, 9, 5)]
    generations = [
        Generation(prompt, watcher, Stopping(limit))
        for prompt, watcher, limit in zip(prompts, watchers, (12, 5, 9))
    ]
    play(target, generations, budget=9)
    for watcher in watchers:
        assert len(watcher.seen) >= 2
        for text, states in watcher.seen[1:]:
            assert torch.allclose(states, own_states(model, text[:-1]), atol=1e-9)


def test_states_are_there_again_for_the_next_turn() -> None:
    model = tiny_model("llama", dtype=torch.float64)
    target = new_target(model, check=False)
    prompt = some_prompt(8)
    first = Generation(prompt, Watcher(0, target.vocab_size), Stopping(6))
    play(target, [first], budget=4)
    again = Watcher(1, target.vocab_size)
    play(target, [Generation([*first.context, 5, 6], again, Stopping(3))], budget=4)
    text, states = again.seen[0]
    assert len(states) == len(first.context) - 1  # before anything new was read
    assert torch.allclose(states, own_states(model, text[: len(states)]), atol=1e-9)


def test_what_was_read_without_states_is_read_again() -> None:
    model = tiny_model("llama", dtype=torch.float64)
    target = new_target(model, check=False)
    prompt = some_prompt(8)
    target.sync([prompt])
    target.score([RandomTrees().propose(0)])
    watcher = Watcher(0, target.vocab_size)
    play(target, [Generation(prompt, watcher, Stopping(4))], budget=4)
    assert len(watcher.seen[0][1]) == 0
    text, states = watcher.seen[1]
    assert torch.allclose(states, own_states(model, text[:-1]), atol=1e-9)


def test_states_may_be_wanted_between_a_pass_and_its_commit() -> None:
    """As by another session on the target that a processor asks: the round's text is read again."""
    model = tiny_model("llama", dtype=torch.float64)
    target = new_target(model, check=False)
    prompt = some_prompt(6)
    slot = target.open(prompt)
    target.score({slot: Tree.chain([5, 6])})
    target.keep_states()
    target.commit({slot: Path((0,), (5, 9))})
    assert target.pending(slot) == len(prompt) + 1
    (row,) = target.score({slot: EMPTY})[slot]
    with torch.no_grad():
        expected = model(torch.tensor([[*prompt, 5, 9]]), use_cache=False).logits[0, -1]
    assert torch.allclose(row, expected, atol=1e-9)


def test_states_change_no_text() -> None:
    model = tiny_model("llama", dtype=torch.float64)
    prompt = some_prompt(6)
    texts = []
    for drafter in (RandomTrees(64, seed=1), Watcher(1, 64)):
        generation = Generation(prompt, drafter, Stopping(20))
        rounds: list[Round] = list(decode(new_target(model, check=False), [generation], 6))
        texts.append((generation.output, [round.tree for round in rounds]))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("weights", ["native", "fused", "packed", "packed+plain"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "phi"])
def test_the_output_head_can_be_had_whole_or_in_part(name: str, weights: str) -> None:
    model = new_model(name)
    states = own_states(model, some_prompt(5))
    with torch.no_grad():
        expected = model.get_output_embeddings()(states)
    prepare(model, weights)
    target = new_target(model, check=False)
    matrix, bias = target.output_head()
    assert torch.allclose(states @ matrix.T + bias, expected, atol=1e-5)
    few = torch.tensor([3, 9, 60])
    matrix, bias = target.output_head(few)
    assert torch.allclose(states @ matrix.T + bias, expected[:, few], atol=1e-5)


@pytest.mark.parametrize("weights", ["native", "packed"])
@pytest.mark.parametrize(
    ("name", "changes"),
    [("cohere", {"logit_scale": 0.25}), ("gemma3", {"final_logit_softcapping": 30.0})],
)
def test_scores_are_those_of_the_model_but_for_a_cap(
    name: str, changes: dict[str, float], weights: str
) -> None:
    """Or heads would learn from, and draw with, other chances than the model's."""
    model = new_model(name, **changes)
    states = own_states(model, text := some_prompt(5))
    with torch.no_grad():
        expected = model(torch.tensor([text]), use_cache=False).logits[0]
    prepare(model, weights)
    matrix, bias = new_target(model, check=False).output_head()
    found = states @ matrix.T + bias
    if cap := changes.get("final_logit_softcapping"):
        found = cap * torch.tanh(found / cap)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_a_head_is_asked_for_beside_other_threads_and_unseen_by_them() -> None:
    """Their passes keep their scores, and no call takes the model for one that has changed."""
    model, ids = new_model("cohere", logit_scale=0.25), torch.tensor([some_prompt(5)])
    with torch.no_grad():
        expected = model(ids).logits
    seen: list[tuple[torch.Tensor, object]] = []

    def look() -> None:
        with torch.no_grad():
            seen.append((model(ids).logits, hooks_of(model)))

    others = [Thread(target=look)]

    def meanwhile(module: nn.Module, given: Any) -> None:
        while others:
            other = others.pop()
            other.start()
            other.join()

    hook = model.model.layers[2].register_forward_pre_hook(meanwhile)
    form = hooks_of(model)
    weights, _ = output_head(model, None)
    hook.remove()
    ((logits, during),) = seen
    assert torch.equal(logits, expected) and during == form
    torch.testing.assert_close(weights, 0.25 * model.get_output_embeddings().weight.detach())


def test_a_target_that_shows_nothing_is_refused() -> None:
    class Blind(ToyTarget):
        capabilities = frozenset({VIRTUAL_TOKENS})

    with pytest.raises(UsageError, match="needs hidden_states, which Blind does not offer"):
        play(Blind(), [Generation([1, 2], Watcher(0, 16), Stopping(3))])


@pytest.mark.parametrize("layers", [(0,), (1, 2), (0, 1, 2)])
def test_another_threads_pass_of_the_model_is_not_watched(layers: tuple[int, ...]) -> None:
    model, text = new_model("llama"), some_prompt(5)
    others = [Thread(target=lambda: own_states(model, some_prompt(9)))]

    def meanwhile(module: nn.Module, given: Any) -> None:
        while others:
            other = others.pop()
            other.start()
            other.join()

    last = model.model.layers[2].register_forward_pre_hook(meanwhile)
    with torch.no_grad():
        logits, states = call_with_states(model, lambda: model(torch.tensor([text])).logits, layers)
    last.remove()
    assert not others
    parts = [
        own_outputs(model, text, [each]) if each else own_states(model, text) for each in layers
    ]
    assert torch.equal(states[0], torch.cat(parts, dim=-1))
    assert logits.shape[:2] == (1, 5)
