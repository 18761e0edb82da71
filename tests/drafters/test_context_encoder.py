"""Chimera's draft model: what it drafts level by level is what it learns all at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.trained_heads import HIDDEN, VOCAB, greens_of, learned, small_chimera, texts

from paceline.drafters.chimera_levels import ModuleLevels
from paceline.drafters.chimera_model import ChimeraModel
from paceline.drafters.context_encoder import ngrams
from paceline.drafters.level_tree import BeamSettings
from paceline.drafters.ngram_cache import last_ngram
from paceline.trained_configs import ChimeraConfig

CONFIGS = [
    ChimeraConfig(heads=4),
    ChimeraConfig(heads=3, order=1, form="full"),
    ChimeraConfig(heads=3, order=5, residual=False, layers=1),
    ChimeraConfig(heads=2, order=2, vocabulary=9),
    ChimeraConfig(heads=3, final_norm=True, rotary_base=500.0),
    ChimeraConfig(heads=3, biases=True),
    ChimeraConfig(heads=2, residual=False, form="full", vocabulary=9),
]


def drafted(
    model: ChimeraModel, tokens: list[int], matures: torch.Tensor, point: int, chunk: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and draft states [heads, …] after `point`, the way a drafter gets them; the text is
    read `chunk` tokens at a time."""
    order, levels = model.config.order, ModuleLevels(model, BeamSettings(), greens_of(model))

    def green(*ends: int) -> torch.Tensor:
        return model.green(torch.tensor([last_ngram(tokens[: end + 1], order) for end in ends]))

    for first in range(0, point + 1, chunk):
        places = range(first, min(first + chunk, point + 1))
        levels.take(matures[: places.stop], list(green(*places)))
    assert levels.length == point + 1
    logits, states = [], []
    for depth in range(model.config.heads):
        found = levels.drafts(depth, list(green(point + 1 + depth)), [depth - 1])
        states.append(found[0])
        logits.append(model.logits(depth, matures[point], found)[0])
    return torch.stack(logits), torch.stack(states)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@torch.no_grad()
def test_level_by_level_is_all_at_once(config: ChimeraConfig) -> None:
    model = small_chimera(config)
    tokens, matures = texts(2, 20)
    points = torch.tensor([[0, 1, 7, 14], [2, 3, 4, 15]])
    of_points, states_of_points = learned(model, tokens, matures, points)
    assert of_points.shape == (2, 4, config.heads, config.vocabulary or VOCAB)
    assert states_of_points.shape == (2, 4, config.heads, HIDDEN)
    for text in range(2):
        for place, point in enumerate(points[text].tolist()):
            logits, states = drafted(
                model, tokens[text].tolist(), matures[text], point, chunk=1 + place
            )
            torch.testing.assert_close(logits, of_points[text, place], atol=2e-5, rtol=1e-4)
            torch.testing.assert_close(states, states_of_points[text, place], atol=2e-5, rtol=1e-4)


@torch.no_grad()
def test_own_guesses_are_drafted_below_the_root() -> None:
    """Student forcing: the same as a text that goes on as the model guesses."""
    for config in (ChimeraConfig(heads=4), ChimeraConfig(heads=3, order=5, vocabulary=9)):
        model = small_chimera(config)
        tokens, matures = texts(1, 12)
        for point in (0, 1, 6):
            own, _ = learned(model, tokens, matures, torch.tensor([[point]]), own_guesses=True)
            guesses = own[0, 0].argmax(dim=-1)
            if model.token_ids is not None:
                guesses = model.token_ids[guesses]
            told = tokens.clone()
            told[0, point + 2 : point + 1 + config.heads] = guesses[:-1]
            as_text, _ = learned(model, told, matures, torch.tensor([[point]]))
            torch.testing.assert_close(own, as_text, atol=1e-6, rtol=1e-5)


@torch.no_grad()
def test_no_row_sees_the_future() -> None:
    config = ChimeraConfig(heads=3)
    model = small_chimera(config)
    tokens, matures = texts(1, 20)
    point = 8
    before, _ = learned(model, tokens, matures, torch.tensor([[point]]))
    for depth in range(config.heads):
        # After the node itself nothing may matter, and no state that the target has yet to make.
        later, unread = tokens.clone(), matures.clone()
        later[:, point + 2 + depth :] = (later[:, point + 2 + depth :] + 1) % VOCAB
        unread[:, point + 1 :] = 7.0
        after, _ = learned(model, later, unread, torch.tensor([[point]]))
        assert torch.equal(before[:, :, : depth + 1], after[:, :, : depth + 1])
    # What it is to see does matter: the root, and each token and state before it.
    for place in range(point + 2):
        other = tokens.clone()
        other[0, place] = (other[0, place] + 1) % VOCAB
        after, _ = learned(model, other, matures, torch.tensor([[point]]))
        assert not torch.equal(before, after)
    for place in range(point + 1):
        changed = matures.clone()
        changed[0, place] += 1
        after, _ = learned(model, tokens, changed, torch.tensor([[point]]))
        assert not torch.equal(before, after)


@torch.no_grad()
def test_points_and_texts_do_not_see_one_another() -> None:
    model = small_chimera(ChimeraConfig(heads=3))
    tokens, matures = texts(2, 16)
    points = torch.tensor([[1, 5, 9], [0, 5, 11]])
    together, _ = learned(model, tokens, matures, points)
    for text in range(2):
        for place in range(3):
            alone, _ = learned(
                model,
                tokens[text : text + 1],
                matures[text : text + 1],
                points[text : text + 1, place : place + 1],
            )
            torch.testing.assert_close(together[text, place], alone[0, 0], atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_branches_do_not_see_one_another() -> None:
    """Siblings, and nodes below them, drafted at once or one branch after the other."""
    model = small_chimera(ChimeraConfig(heads=3))
    tokens, matures = texts(1, 10)
    levels = ModuleLevels(model, BeamSettings(), greens_of(model))
    levels.take(matures[0], list(model.green(ngrams(tokens, 3)[0])))
    nodes = [*torch.randn(6, HIDDEN, generator=torch.Generator().manual_seed(5))]
    parents = [-1, 0, 0, 1, 2, 2]
    tree = torch.cat(
        [levels.drafts(0, nodes[:1], [-1]), levels.drafts(1, nodes[1:3], [0, 0]),
         levels.drafts(2, nodes[3:], parents[3:])]
    )  # fmt: skip
    for leaf in range(3, 6):
        chain = [0, parents[leaf], leaf]
        for depth, node in enumerate(chain):
            found = levels.drafts(depth, nodes[node : node + 1], [depth - 1])
            torch.testing.assert_close(found[0], tree[node], atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_a_context_can_go_back_and_on() -> None:
    model = small_chimera(ChimeraConfig(heads=2))
    tokens, matures = texts(1, 14)
    greens = [*model.green(ngrams(tokens, 3)[0])]
    straight, winding = (ModuleLevels(model, BeamSettings(), greens_of(model)) for _ in range(2))
    straight.take(matures[0, :9], greens[:9])
    winding.take(matures[0, :4], greens[:4])
    winding.drafts(0, greens[5:6], [-1])
    winding.take(torch.cat([matures[0, :4], matures[0, 9:]]), greens[9:])
    winding.keep(4)
    winding.take(matures[0, :9], greens[4:9])
    one, other = (each.drafts(0, greens[9:10], [-1]) for each in (straight, winding))
    torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_ngrams_at_the_beginning_of_a_text() -> None:
    text = torch.tensor([[5, 6, 7, 8]])
    assert ngrams(text, 3)[0].tolist() == [[5, 5, 5], [5, 6, 6], [5, 6, 7], [6, 7, 8]]
    assert ngrams(text, 1)[0].tolist() == [[5], [6], [7], [8]]
    for order in range(1, 6):
        expected = [list(last_ngram(text[0, : end + 1].tolist(), order)) for end in range(4)]
        assert ngrams(text, order)[0].tolist() == expected


def test_heads_begin_as_the_targets_own() -> None:
    tokens, matures = texts(1, 12)
    for form in ("compact", "full"):
        config = ChimeraConfig(heads=2, form=form, residual=False)
        model = small_chimera(config, noise=0.0)
        found, states = learned(model, tokens, matures, torch.tensor([[3, 6]]))
        head = small_chimera(config)._head
        torch.testing.assert_close(found, head(states))
    full = small_chimera(replace(CONFIGS[1], residual=True), noise=0.0)
    found, states = learned(full, tokens, matures, torch.tensor([[3]]))
    expected = full._head(states[0, 0] + matures[0, 3])
    torch.testing.assert_close(found[0, 0], expected, atol=1e-5, rtol=1e-4)
