"""EAGLE as it drafts: what it proposes is what its module says of the whole text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.c_library import needs_library
from tests.draft_hosts import Ticking
from tests.drafters.test_heads_drafting import Noted, own_states
from tests.head_parts import saved_eagle
from tests.helpers import naive_stream, play
from tests.tiny_models import VOCAB, some_prompt, tiny_model
from tests.trained_heads import save_eagle, unrolled

from paceline.drafters import Auto, Eagle, EagleSettings, Host
from paceline.drafters.eagle_programs import EaglePrograms
from paceline.drafters.eight_bits import in_eight_bits, in_floats
from paceline.drafters.parts import find_parts
from paceline.drafters.trained_heads import EagleParts
from paceline.errors import ModelError, UsageError
from paceline.loop import Generation
from paceline.planning.draft_length import DraftLength
from paceline.records import TextStart
from paceline.sampling import Sampler
from paceline.stopping import Stopping
from paceline.targets.causal_lm import CausalLMTarget
from paceline.tree import ROOT, Tree

TINY = "tiny"
SIZES = {"hidden": 32, "vocab": VOCAB, "fingerprint": TINY}


def eagle_on(
    target: CausalLMTarget, config: dict[str, Any] | None = None, **settings: Any
) -> Eagle:
    host = Host(target, TINY, clock=Ticking(1e-3))
    return Eagle(host, parts=str(saved_eagle(**SIZES, **(config or {}))), **settings)


def step_by_step(drafter: Eagle) -> Eagle:
    """Drafts are not made in one call, as on a GPU."""
    programs = drafter._model.programs
    if isinstance(programs, EaglePrograms):
        programs.call = None
    return drafter


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
    drafter = eagle_on(target, ranks=4, beam=beam, least=0.0, depth=4)
    noted = Noted(drafter if whole else step_by_step(drafter))
    play(target, [Generation(some_prompt(9), noted, Stopping(16))], budget=60)
    model, compared = drafter._model, 0
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
    noted = Noted(drafter)
    play(target, [Generation(some_prompt(9), noted, Stopping(16))], budget=60)
    for text, tree in noted.seen[1:-4]:
        features = target_outputs(target, text)
        tokens = torch.tensor([text])
        outputs = unrolled(drafter._model, tokens, features[None], 1)[0][0, -1:]
        best = drafter._model.guess(outputs, 3)
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


@needs_library
@pytest.mark.parametrize("config", [{}, {"vocabulary": 20, "kv_heads": 4}], ids=str)
@pytest.mark.parametrize(
    ("settings", "temperature"),
    [
        ({}, 0.0),
        ({"least": 0.0, "depth": 3}, 0.9),
        ({"least": 0.0, "depth": 32, "ranks": 40, "beam": 9}, 0.0),
        ({"least": 0.1, "beam": 2}, 0.9),
        ({"ranks": 1}, 0.0),
        ({"least": 1.0}, 0.9),
    ],
    ids=str,
)
def test_a_draft_in_one_call_is_the_draft_level_by_level(
    temperature: float, settings: dict[str, Any], config: dict[str, Any]
) -> None:
    """Prompts that are shorter and longer than what one call reads, of several texts in turn."""
    seen, sampler = [], Sampler(seed=3, temperature=temperature)
    for by_level in (False, True):
        target = CausalLMTarget(tiny_model("llama"), check=False)
        drafter = eagle_on(target, config, **settings)
        programs = drafter._model.programs
        assert isinstance(programs, EaglePrograms) and programs.call is not None
        noted = Noted(step_by_step(drafter) if by_level else drafter)
        for length, budget in ((2, 3), (7, 30), (30, 1), (40, 200)):
            text = Generation(some_prompt(length), noted, Stopping(12), sampler)
            play(target, [text], budget=budget)
        seen.append(noted.seen)
    assert len(seen[0]) > 20
    for (_, one), (_, other) in zip(*seen, strict=True):
        assert (one.tokens, one.parents) == (other.tokens, other.parents)
        assert one.weights == pytest.approx(other.weights)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_texts_of_a_batch_are_those_of_plain_decoding(temperature: float) -> None:
    model = tiny_model("llama", dtype=torch.float64)
    target = CausalLMTarget(model, check=False)
    sampler = Sampler(seed=5, temperature=temperature)
    prompts = [some_prompt(length, seed=length) for length in (2, 11, 40)]
    generations = [
        Generation(prompt, eagle_on(target), Stopping(12), sampler) for prompt in prompts
    ]
    play(target, generations, budget=9)
    for generation, prompt in zip(generations, prompts, strict=True):
        alone = CausalLMTarget(model, check=False)
        assert generation.output == naive_stream(alone, prompt, 12, sampler)


def drafts(drafter: Eagle, target: CausalLMTarget, text: list[int], budget: int = 12) -> Tree:
    """What is proposed where the target has read all but the last token."""
    drafter.observe_states(own_states(target.model, text[:-1]).detach())
    return drafter.propose(budget)


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
    drafter._length = plan
    drafter.start(TextStart(text := some_prompt(9)))
    assert (max(drafts(drafter, target, text, budget=3000).depths) > 3) == deep


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"beam": 0}, "beam must be a whole number >= 1"),
        ({"ranks": 0}, "ranks must be a whole number >= 1"),
        ({"depth": -1}, "depth must be a whole number >= 0"),
        ({"depth": 33}, "depth must be at most 32, got 33"),
        ({"least": 2}, "least must be a number from 0 to 1, got 2"),
    ],
)
def test_bad_settings_are_named(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        EagleSettings(**wrong)


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


def test_damaged_folders_and_those_of_others_are_refused(tmp_path: Path) -> None:
    folder = save_eagle(tmp_path / "eagle")
    with pytest.raises(ModelError, match=r"EAGLE parts were trained for a test's model \(toy\)"):
        find_parts(EagleParts, str(folder), "other")
    with pytest.raises(ModelError, match="there are no EAGLE parts for this model: train some"):
        find_parts(EagleParts, "", "nobody's")
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match=r"cannot read the EAGLE parts .*model.safetensors"):
        find_parts(EagleParts, str(folder), "toy")
    path.write_bytes(whole)
    parts = load_file(path)
    save_file({**parts, "enter.weight": parts["enter.weight"][:, 1:].contiguous()}, path)
    with pytest.raises(ModelError, match=r"is damaged: the shape of its enter.weight is \("):
        find_parts(EagleParts, str(folder), "toy")
    save_file({**parts, "own_norm": parts["own_norm"] * torch.inf}, path)
    with pytest.raises(ModelError, match="contains NaN or infinite values"):
        find_parts(EagleParts, str(folder), "toy")
