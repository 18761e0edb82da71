"""Optimiser, schedule, and the best parts so far."""

from __future__ import annotations

import pytest
import torch
from tests.tiny_models import VOCAB
from tests.training.packed import base_of, window_of

from paceline.training.methods.medusa import Medusa, MedusaSettings
from paceline.training.scorer import Teacher
from paceline.training.trainee import Trainee
from paceline.training.trainer import Trainer


def trainer(settings: MedusaSettings) -> Trainer:
    base = base_of()
    torch.manual_seed(0)
    teacher = Teacher(base.head, None, VOCAB)
    return Trainer(Trainee(Medusa(base, settings), teacher, settings, 1), settings)


def test_a_restored_learner_goes_on_exactly() -> None:
    settings, model = MedusaSettings(steps=8), base_of().model
    texts = [[(7 * i + step) % VOCAB for i in range(20)] for step in range(8)]
    batches = [window_of(model, [text]) for text in texts]
    whole, first, second = trainer(settings), trainer(settings), trainer(settings)
    for batch in batches:
        whole.learn(batch)
    for batch in batches[:3]:
        first.learn(batch)
    first.judge(2.0)
    second.restore(*first.state())
    assert (second.step, second.best_loss) == (3, 2.0)
    for batch in batches[3:]:
        second.learn(batch)
    for name, part in whole.model.method.tensors().items():
        assert torch.equal(part, second.model.method.tensors()[name])


def test_the_rate_falls_and_training_stops_early() -> None:
    settings = MedusaSettings(
        steps=100, learning_rate=1.0, patience=2, schedule="cosine", warm_up=0.0
    )
    assert [settings.rate(step) for step in (0, 50, 100)] == pytest.approx([1.0, 0.5, 0.0])
    found = trainer(settings)
    for loss in (3.0, 2.0, 1.9999, 2.5):
        assert not found.finished
        found.judge(loss)
    assert found.finished and found.best_loss == 2.0
