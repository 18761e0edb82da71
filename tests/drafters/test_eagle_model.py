"""EAGLE's draft model: what it drafts level by level is what it learns all at once."""

from __future__ import annotations

import pytest
import torch
from tests.c_library import needs_library
from tests.trained_heads import VOCAB, small_eagle, unrolled

from paceline.chains import certain_end
from paceline.drafters.attention_rows import Stretches
from paceline.drafters.eagle_levels import ModuleLevels, levels_of
from paceline.drafters.eagle_model import EagleModel
from paceline.drafters.eagle_programs import compile_eagle
from paceline.drafters.guesses import Guesses, guesses_of
from paceline.drafters.level_tree import BeamSettings
from paceline.trained_configs import EagleConfig

CONFIGS = [EagleConfig(), EagleConfig(layers=(1, 2, 5), vocabulary=9, biases=True)]
STEPS = 4
FOUR = BeamSettings(ranks=4)


def a_text(model: EagleModel, length: int = 14) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [1, length] and features [1, length, width]."""
    noise = torch.Generator().manual_seed(length)
    tokens = torch.randint(VOCAB, (1, length), generator=noise)
    return tokens, torch.randn(1, length, model.width, generator=noise)


def chain(levels: ModuleLevels, tokens: list[int]) -> list[Guesses]:
    """What is guessed after the root and after each of these tokens in a row."""
    found = [levels.begin()]
    found += [levels.grow([token], [node]) for node, token in enumerate(tokens)]
    return found


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@torch.no_grad()
def test_level_by_level_is_all_at_once(config: EagleConfig) -> None:
    """Texts that are read in pieces, with drafts between, whose rows leave no trace."""
    model = small_eagle(config)
    tokens, features = a_text(model)
    whole = unrolled(model, tokens, features, STEPS)
    levels = ModuleLevels(model, FOUR)
    for known in (1, 2, 6, 7, 10):
        text = tokens[0, : known + 1].tolist()
        levels.read(text, features[0, :known])
        said = tokens[0, known + 1 : known + STEPS].tolist()
        for step, guesses in enumerate(chain(levels, said)):
            logits = model.logits(whole[step][0, known - 1 : known])
            expected = guesses_of(logits, 4, model.token_ids)
            assert guesses.tokens == expected.tokens
            assert guesses.probabilities[0] == pytest.approx(expected.probabilities[0], abs=1e-5)
        stray = levels.begin().tokens[0]
        levels.grow(stray[:2], [0, 0])


@torch.no_grad()
def test_rows_see_what_comes_before_and_nothing_else() -> None:
    model = small_eagle(EagleConfig())
    tokens, features = a_text(model)
    before = unrolled(model, tokens, features, STEPS)
    row = 5  # of the place after it
    later, unread = tokens.clone(), features.clone()
    unread[:, row + 1 :] += 1
    for step in range(STEPS):
        later = tokens.clone()
        later[:, row + 2 + step :] = (later[:, row + 2 + step :] + 1) % VOCAB
        after = unrolled(model, later, unread, step + 1)
        assert torch.equal(before[step][:, row], after[step][:, row])
    for place in range(1, row + 2):
        other = tokens.clone()
        other[0, place] = (other[0, place] + 1) % VOCAB
        assert not torch.equal(before[0][:, row], unrolled(model, other, features, 1)[0][:, row])
    for place in range(row + 1):
        changed = features.clone()
        changed[0, place] += 1
        assert not torch.equal(before[0][:, row], unrolled(model, tokens, changed, 1)[0][:, row])


@torch.no_grad()
def test_texts_beside_one_another_do_not_see_one_another() -> None:
    """Two stretches in a row, the second of which begins in the middle of its text."""
    model = small_eagle(EagleConfig())
    one, other = (a_text(model, length) for length in (6, 9))
    tokens, features = (torch.cat(each, dim=1) for each in zip(one, other, strict=True))
    text = torch.tensor([[0] * 6 + [1] * 9])
    position = torch.tensor([[*range(6), *range(40, 49)]])
    points = torch.tensor([[0, 2, 3, 6, 9, 11]])
    same = text[:, None] == text.gather(1, points)[..., None]
    sees = same & (torch.arange(15) <= points[..., None])
    start = torch.tensor([[0] * 6 + [6] * 9])
    found = model(Stretches(tokens, features, position, start, points, sees), 3)
    alone = [unrolled(model, *each, 3) for each in (one, other)]
    for step in range(3):
        expected = torch.cat([alone[0][step][:, [0, 2, 3]], alone[1][step][:, [0, 3, 5]]], dim=1)
        # Where a step has guesses of its own text to read.
        rows = [
            row
            for row, point in enumerate(points[0].tolist())
            if point + step + 1 < (6, 15)[row > 2]
        ]
        torch.testing.assert_close(found[step][:, rows], expected[:, rows], atol=2e-5, rtol=1e-4)


@needs_library
@torch.no_grad()
def test_a_long_prompt_is_read_as_its_pieces_are() -> None:
    model = small_eagle(EagleConfig()).ready("fastest", compile_eagle)
    tokens, features = a_text(model, 1400)
    whole, pieces = levels_of(model, FOUR), levels_of(model, FOUR)
    said = tokens[0].tolist()
    whole.read(said, features[0, :-1])
    for known in (1, 700, 703, 1399):
        pieces.read(said[: known + 1], features[0, :known])
    ends = certain_end(0.0, 3)
    one, other = (each.draft(said, features[0, :-1], 9, ends) for each in (whole, pieces))
    assert one == other and len(one[0]) == 9  # a row's numbers do not depend on those beside it
