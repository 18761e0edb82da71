"""Optimiser, schedule, and the best parts so far."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from tests.tiny_models import VOCAB
from tests.training.packed import base_of, window_of
from torch import nn

from paceline.errors import UsageError
from paceline.kernels.blocks import rounded_numbers
from paceline.trained_configs import Bottom
from paceline.training import trainer as trainer_module
from paceline.training.methods.chimera import Chimera, ChimeraSettings
from paceline.training.methods.eagle import Eagle, EagleSettings
from paceline.training.methods.medusa import Medusa, MedusaSettings
from paceline.training.precision import products_name, without_cudnn
from paceline.training.scorer import Teacher
from paceline.training.trainer import Trainer


def trainer(settings: MedusaSettings) -> Trainer:
    base = base_of()
    torch.manual_seed(0)
    return Trainer(Medusa(base, settings))


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
    for name, part in whole.method.tensors().items():
        assert torch.equal(part, second.method.tensors()[name])


def test_rounded_matrices_are_learned_as_they_guess() -> None:
    batch = window_of(base_of().model, [[7 * i % VOCAB for i in range(20)]])
    found, plain = trainer(MedusaSettings(bits=4)), trainer(MedusaSettings())
    for each in (found, plain):
        with torch.no_grad():
            part = each.method.learning()["blocks.weight"]
            part.normal_(generator=torch.manual_seed(1))
    before = found.method.tensors()
    with found.rounded():
        guessing = found.method.tensors()
        wanted = plain.loss(batch).item(), found.loss(batch).item()
    weight, rounded_weight = before["blocks.weight"], guessing["blocks.weight"]
    assert all(len(group.unique()) <= 16 for group in rounded_weight.view(-1, 32))
    assert torch.equal(guessing["blocks.bias"], before["blocks.bias"])
    assert torch.equal(found.method.tensors()["blocks.weight"], weight)
    assert not torch.equal(rounded_weight, weight)
    # The output head is rounded, too.
    assert found.learn(batch) == wanted[1] != wanted[0]
    assert 0 < (found.method.tensors()["blocks.weight"] - weight).abs().max() < 1e-2


def test_matrices_are_whole_again_after_an_error() -> None:
    found = trainer(MedusaSettings(bits=8))
    before = found.method.tensors()
    with pytest.raises(KeyboardInterrupt), found.rounded():
        raise KeyboardInterrupt
    assert all(torch.equal(part, before[name]) for name, part in found.method.tensors().items())


def test_matrices_are_whole_again_if_they_could_not_be_rounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    eagle = Eagle(base_of(), EagleSettings(bits=4))
    found = Trainer(eagle)
    before, rounded = eagle.tensors(), []

    def fail_at_the_second(weight: torch.Tensor, bits: int) -> torch.Tensor:
        rounded.append(weight)
        if len(rounded) == 2:
            raise MemoryError
        return rounded_numbers(weight, bits)

    monkeypatch.setattr(trainer_module, "rounded_numbers", fail_at_the_second)
    with pytest.raises(MemoryError), found.rounded():
        pass
    assert all(torch.equal(part, before[name]) for name, part in eagle.tensors().items())


def test_chimera_continues_its_own_guesses_as_drafts_do() -> None:
    base = base_of()
    states = torch.randn(3, base.head[0].shape[1])
    found = Chimera(base, ChimeraSettings(bits=4)).module.shared_head(states)
    weight, bias = Teacher(base.head, None, VOCAB, 4).guessing
    torch.testing.assert_close(found, nn.functional.linear(states, weight, bias))


def one_window() -> Any:
    """Of one text, as `Batches`."""
    window = window_of(base_of().model, [[7 * i % VOCAB for i in range(20)]])
    return SimpleNamespace(whole=lambda texts: iter([window]))


def test_chimera_is_also_tested_after_its_own_guesses() -> None:
    base, tested = base_of(), []
    for own_guesses in (False, True):  # however it has learned
        torch.manual_seed(0)
        found = Trainer(Chimera(base, ChimeraSettings(own_guesses=own_guesses)))
        tested.append(found.test(one_window(), base.train))
        assert list(tested[-1]) == ["evaluation", "evaluation_after_own_guesses"]
    for one, other in zip(tested[0].values(), tested[1].values(), strict=True):
        assert one.as_json() == other.as_json()
    after_text, after_own = (tally.accepted for tally in tested[0].values())
    assert after_text[:, 0] == after_own[:, 0]  # the first guess follows none
    assert (after_text[:, 1:] != after_own[:, 1:]).all()


@pytest.mark.parametrize("bottom", ["transformer frozen", "transformer finetune"])
def test_what_cannot_follow_its_own_guesses_is_tested_once(bottom: Bottom) -> None:
    chimera = Trainer(Chimera(base_of(), ChimeraSettings(bottom=bottom)))
    for found in (trainer(MedusaSettings()), chimera):
        assert list(found.test(one_window(), base_of().train)) == ["evaluation"]


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


def test_a_gradient_that_is_no_number_reaches_no_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    part = nn.Parameter(torch.zeros(2))
    method: Any = SimpleNamespace(
        base=base_of(),
        settings=MedusaSettings(),
        bits=0,
        tensors=dict,
        relative_rate=lambda name: 1.0,
        learning=lambda: {"part": part},
        may_round=lambda name, part: False,
    )
    found, batch = Trainer(method), cast(Any, None)
    # 0, but 0 times an infinite slope
    monkeypatch.setattr(found, "loss", lambda batch: (0 * part).sqrt().sum())
    with pytest.raises(UsageError, match=r"norm of the gradient of step 1 is nan: .* smaller"):
        found.learn(batch)
    assert not part.any()


def test_cudnn_is_left_as_it_was_found() -> None:
    gpu, enabled = torch.device("cuda"), torch.backends.cuda.cudnn_sdp_enabled
    before = enabled()
    with without_cudnn(gpu):
        assert not enabled()
    assert enabled() == before
    assert products_name("bfloat16", gpu) == "tf32"
