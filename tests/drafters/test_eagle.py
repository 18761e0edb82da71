"""EAGLE as it drafts: what it proposes is what its module says of the whole text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.draft_hosts import Ticking
from tests.drafters.test_heads_drafting import Noted, own_states
from tests.drafters.test_level_drafters import drafts
from tests.head_parts import saved_eagle
from tests.helpers import naive_stream, play
from tests.tiny_models import VOCAB, some_prompt, tiny_model
from tests.trained_heads import unrolled

from paceline.drafters import Auto, Eagle, Host
from paceline.drafters.eight_bits import in_eight_bits, in_floats
from paceline.drafters.guesses import guesses_of
from paceline.drafters.trained_heads import EagleParts
from paceline.errors import ModelError
from paceline.loop import Generation
from paceline.planning.draft_length import DraftLength
from paceline.records import TextStart
from paceline.stopping import Stopping
from paceline.targets.causal_lm import CausalLMTarget
from paceline.tree import ROOT

TINY = "tiny"
SIZES = {"hidden": 32, "vocab": VOCAB, "fingerprint": TINY}


def eagle_on(
    target: CausalLMTarget, config: dict[str, Any] | None = None, **settings: Any
) -> Eagle:
    host = Host(target, TINY, clock=Ticking(1e-3))
    return Eagle(host, parts=str(saved_eagle(**SIZES, **(config or {}))), **settings)


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "beam", "whole"),
    [("llama", 1, False), ("llama", 3, True), ("gpt2", 1, True), ("gpt2", 3, False)],
)
def test_it_proposes_what_its_module_says_of_the_whole_text(
    name: str, beam: int, whole: bool
) -> None:
    """Every node of every tree, over rounds that accept and reject: rows that are kept are those of
    a text that is read from scratch."""
    target = CausalLMTarget(tiny_model(name), check=False)
    weights = "fastest" if whole else "native"
    noted = Noted(eagle_on(target, ranks=4, beam=beam, least=0.0, depth=4, weights=weights))
    play(target, [Generation(some_prompt(9), noted, Stopping(10))], budget=60)
    model, compared = eagle_on(target, weights="native")._model, 0
    assert not len(noted.seen[0][1])  # nothing was read yet
    for text, tree in noted.seen[1:-4]:
        assert max(tree.depths) == 4
        for leaf in set(range(len(tree))) - set(tree.parents):
            path = tree.path_to(leaf)
            said = [tree.tokens[node] for node in path]
            tokens = torch.tensor([[*text, *said]])
            features = own_states(target.model, text + said)[None]
            outputs = unrolled(model, tokens, features, len(path))
            chance = 1.0
            for step, node in enumerate(path):
                shares = model.logits(outputs[step][0, len(text) - 2]).softmax(-1)
                chance *= float(shares[tree.tokens[node]])
                assert tree.weights is not None
                assert tree.weights[node] == pytest.approx(chance, rel=1e-3, abs=1e-6)
                compared += 1
    assert compared > 50


@torch.no_grad()
def test_a_feature_of_several_layers_is_drafted_from() -> None:
    """EAGLE-3's, alone and as a source beside one that sees last states."""
    model, config = tiny_model("llama"), {"layers": (1, 2)}
    target = CausalLMTarget(model, check=False)
    drafter = eagle_on(target, config, depth=3, least=0.0)
    module = eagle_on(target, config, weights="native")._model
    noted = Noted(drafter)
    play(target, [Generation(some_prompt(9), noted, Stopping(16))], budget=60)
    for text, tree in noted.seen[1:-4]:
        features = target_outputs(target, text)
        tokens = torch.tensor([text])
        outputs = unrolled(module, tokens, features[None], 1)[0][0, -1:]
        best = guesses_of(module.logits(outputs), 3, None)
        assert [tree.tokens[node] for node in tree.children[ROOT].values()][:3] == best.tokens[0]
    both = Auto({"eagle": eagle_on(target, config), "other": eagle_on(target)})
    generation = Generation(some_prompt(9), both, Stopping(16))
    play(target, [generation], budget=9)
    alone = CausalLMTarget(model, check=False)
    assert generation.output == naive_stream(alone, some_prompt(9), 16)


def target_outputs(target: CausalLMTarget, text: list[int]) -> torch.Tensor:
    """[tokens, 2 * hidden]: what the first two layers give."""
    slot = target.open([*text, 0])
    target.prefill(slot, len(text))
    found = target.states(slot, (1, 2)).clone()
    target.close(slot)
    return found


def test_after_a_rest_it_catches_up_and_after_a_change_it_keeps_what_is_the_same() -> None:
    target = CausalLMTarget(tiny_model("llama"), check=False)
    text, fixed = some_prompt(60), {"depth": 3, "least": 0.0}
    changed = [*text[:50], *some_prompt(6, seed=3)]
    drafter = eagle_on(target, **fixed)
    drafter.start(TextStart(text[:20]))
    assert drafter.unread() == 19
    drafts(drafter, target, text[:20])
    assert drafter.unread() == 0
    drafter._text.extend(text[20:])  # as `observe` does while it rests
    assert drafter.unread() == 40
    found = drafts(drafter, target, text)
    for later in (text, changed, changed[:30], changed[:2], changed):
        fresh = eagle_on(target, **fixed)
        fresh.start(TextStart(later))
        drafter.resume(TextStart(later))
        assert 0 < drafter.unread() < len(later)
        again, expected = drafts(drafter, target, later), drafts(fresh, target, later)
        assert again.tokens == expected.tokens
        assert again.weights == pytest.approx(expected.weights, rel=1e-4)
        if later is text:
            assert again.tokens == found.tokens


def test_memory_is_bounded_by_the_text() -> None:
    target = CausalLMTarget(tiny_model("llama"), check=False)
    drafter = eagle_on(target, beam=2)
    generation = Generation(some_prompt(9), drafter, Stopping(150))
    play(target, [generation], budget=9)
    assert drafter._levels is not None
    assert drafter._levels.room < 2 * (len(generation.context) + 64)


@pytest.mark.parametrize(("seconds", "deep"), [(1e-6, True), (100.0, False)])
def test_levels_are_grown_as_long_as_they_are_worth_their_time(seconds: float, deep: bool) -> None:
    plan = DraftLength()
    for _ in range(30):
        plan.drafted(1e3 * seconds, 1)
        plan.played(1000.0, 2000.0, 2, 0)
        plan.judge([0.9, 0.9, 0.9], 3)
    target = CausalLMTarget(tiny_model("llama"), check=False)
    drafter = eagle_on(target, least=0.0, beam=8, ranks=8)
    drafter._plan = plan
    drafter.start(TextStart(text := some_prompt(9)))
    assert (max(drafts(drafter, target, text, budget=3000).depths) > 3) == deep


def test_parts_in_eight_bits_draft_as_those_in_sixteen(tmp_path: Path) -> None:
    found = EagleParts.from_pretrained(saved_eagle(**SIZES))
    small = replace(found, tensors=in_eight_bits(found.tensors))
    small.save_pretrained(tmp_path)
    opened = EagleParts.from_pretrained(tmp_path)
    for name, tensor in in_floats(opened.tensors).items():
        step = found.tensors[name].abs().max() / 127
        torch.testing.assert_close(tensor, found.tensors[name].float(), atol=float(step), rtol=0)
    target = CausalLMTarget(tiny_model("llama"), check=False)
    drafter = Eagle(Host(target, TINY), parts=str(tmp_path))
    generation = Generation(some_prompt(9), drafter, Stopping(12))
    play(target, [generation], budget=9)
    alone = CausalLMTarget(tiny_model("llama"), check=False)
    assert generation.output == naive_stream(alone, some_prompt(9), 12)
    path = tmp_path / "model.safetensors"
    parts = load_file(path)
    save_file({name: part for name, part in parts.items() if name != "enter.weight.scale"}, path)
    with pytest.raises(ModelError, match=r"damaged: its enter\.weight\.scale is missing$"):
        EagleParts.from_pretrained(tmp_path)
