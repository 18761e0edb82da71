"""Drafts from recordings against those of the modules, with a recorder for the CPU."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from tests.cpu_recorder import CpuRecorder, Refuses
from tests.trained_heads import HIDDEN, VOCAB, small_eagle, small_medusa

from paceline.chains import certain_end
from paceline.drafters.eagle_levels import GraphLevels, ModuleLevels, levels_of
from paceline.drafters.eagle_model import EagleModel
from paceline.drafters.guesses import guesses_of
from paceline.drafters.level_tree import BeamSettings
from paceline.kernels import cuda_graph
from paceline.kernels.programs.rotary import Rotary
from paceline.trained_configs import EagleConfig, MedusaConfig
from paceline.tree import Tree

CONFIGS = [EagleConfig(), EagleConfig(layers=(1, 2, 5), vocabulary=9, biases=True)]
BUDGET = 40


@pytest.fixture(autouse=True)
def recorder(monkeypatch: pytest.MonkeyPatch) -> type[CpuRecorder]:
    monkeypatch.setattr(cuda_graph, "recorder_for", lambda device: CpuRecorder())
    monkeypatch.setattr(Rotary, "_of", Rotary._at)  # as on a GPU, where no table is looked up
    CpuRecorder.made = 0
    return CpuRecorder


class Text:
    """A text that grows, with drafts from recordings and by the modules."""

    def __init__(self, model: EagleModel, seed: int) -> None:
        self.random, self.noise = random.Random(seed), torch.Generator().manual_seed(seed)
        self.model = model
        self.tokens, self.features = [0], torch.randn(0, model.width)
        found = levels_of(model, BeamSettings())
        assert isinstance(found, GraphLevels)
        self.graphs, self.modules = found, ModuleLevels(model, BeamSettings())

    def grow(self, count: int) -> None:
        self.tokens += [self.random.randrange(VOCAB) for _ in range(count)]
        new = torch.randn(count, self.model.width, generator=self.noise)
        self.features = torch.cat([self.features, new])

    def shrink(self, length: int) -> None:
        """Other tokens follow the first `length`."""
        self.tokens, self.features = self.tokens[: length + 1], self.features[:length]
        for levels in (self.graphs, self.modules):
            levels.keep(length - levels.ahead)

    def drafts(self, settings: BeamSettings, sampled: bool = False) -> tuple[Tree, Tree]:
        """What is drafted now, both ways."""
        levels = max(1, settings.depth)
        noise = torch.randn(levels, self.model.outputs, generator=self.noise) if sampled else None
        end = certain_end(0.0, levels)
        self.graphs.noise = self.modules.noise = noise
        self.graphs.settings = self.modules.settings = settings
        self.modules.read(self.tokens, self.features)
        if len(self.features) - self.graphs.length > self.graphs.most_fresh:
            self.graphs.read(self.tokens, self.features)
        expected, _ = self.modules.draft(self.tokens, self.features, BUDGET, end)
        drafted, _ = self.graphs.draft(self.tokens, self.features, BUDGET, end)
        return drafted, expected


def same(found: Tree, expected: Tree) -> bool:
    assert (found.tokens, found.parents) == (expected.tokens, expected.parents)
    assert found.weights == pytest.approx(expected.weights, abs=1e-5)
    return True


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@torch.no_grad()
def test_recordings_draft_what_the_modules_do(
    config: EagleConfig, recorder: type[CpuRecorder]
) -> None:
    """Texts in turns, in pieces of all sizes, past what memory holds, with and without noise."""
    model, settings = small_eagle(config), BeamSettings(beam=3, ranks=4, least=0.0, depth=4)
    texts = [Text(model, seed) for seed in (1, 2)]
    for step in range(60):
        text = texts[step % 2]
        text.grow(text.random.choice([1, 2, 5, 16, 17, 40]))
        assert same(*text.drafts(settings, sampled=step % 5 == 2))
        if step % 7 == 3:
            text.shrink(len(text.features) - text.random.choice([1, 4]))
            text.grow(3)
            assert same(*text.drafts(settings))
    assert {text.graphs.room for text in texts} == {512}
    assert recorder.made == 4  # to read and to grow, with two sizes of memory


@torch.no_grad()
def test_a_draft_can_be_repeated_with_other_settings() -> None:
    text = Text(small_eagle(EagleConfig()), 1)
    text.grow(7)
    for settings in (
        BeamSettings(depth=1, least=0.0),
        BeamSettings(depth=32, beam=1, ranks=1, least=0.0),
        BeamSettings(depth=3, beam=5, ranks=20, least=0.0),
    ):
        for _ in range(3):
            found, _ = text.drafts(settings)
            fresh = Text(text.model, 1)
            fresh.grow(7)
            assert same(found, fresh.drafts(settings)[1])


@torch.no_grad()
def test_what_is_no_number_in_one_text_stays_there() -> None:
    model, settings = small_eagle(EagleConfig()), BeamSettings(depth=3, least=0.0)
    broken, sound = Text(model, 1), Text(model, 2)
    for text in (broken, sound):
        text.grow(9)
    broken.features[3:] = torch.nan
    for _ in range(3):
        broken.drafts(settings)
        assert same(*sound.drafts(settings))


@torch.no_grad()
def test_without_recordings_the_same_work_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graph, "recorder_for", lambda device: Refuses())
    text = Text(small_eagle(replace(CONFIGS[1])), 1)
    for count in (9, 1, 3, 20, 2):
        text.grow(count)
        assert same(*text.drafts(BeamSettings(depth=3, least=0.0)))
    assert text.model.programs.cache_info().currsize == 1


HEADS = [
    MedusaConfig(heads=3),
    MedusaConfig(heads=2, layers=0, form="full"),
    MedusaConfig(heads=2, layers=2, vocabulary=9),
]


@pytest.mark.parametrize("config", HEADS, ids=str)
@torch.no_grad()
def test_medusas_heads_are_recorded(config: MedusaConfig, recorder: type[CpuRecorder]) -> None:
    recorded, heads, random = small_medusa(config), small_medusa(config), torch.Generator()
    for step in range(12):
        state, ranks = torch.randn(1, HIDDEN, generator=random), 3 + step % 2
        noise = torch.randn(config.heads, heads.outputs, generator=random) if step % 3 else None
        found = recorded.guess(state, ranks, noise)
        expected = guesses_of(heads(state)[0], ranks, heads.token_ids, noise)
        assert found.tokens == expected.tokens
        for own, shares in zip(found.probabilities, expected.probabilities, strict=True):
            assert own == pytest.approx(shares, abs=1e-6)
    assert recorder.made == 2  # for each number of ranks
