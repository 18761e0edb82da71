"""The losses of guesses, beside dense ones that autograd differentiates; and what is counted."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from paceline.training import scorer as scorer_module
from paceline.training import soft_loss
from paceline.training.batches import Batch
from paceline.training.scorer import Scorer, Teacher
from paceline.training.settings import SoftLoss, TrainerSettings
from paceline.training.soft_loss import head_loss
from paceline.training.tally import Tally, bootstrap

KINDS = get_args(SoftLoss)


def dense(logits: torch.Tensor, chances: torch.Tensor, labels: torch.Tensor, kind: str) -> Any:
    """The definition."""
    if kind == "labels":
        return F.cross_entropy(logits, labels, reduction="none")
    kl = F.kl_div(logits.log_softmax(-1), chances, reduction="none").sum(-1)
    if kind == "kl":
        return kl
    overlap = torch.minimum(logits.softmax(-1), chances).sum(-1)
    weight = (-3 * overlap.detach()).exp()
    return weight * kl + (1 - weight) * (1 - overlap)


@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_gradients_are_those_of_the_dense_ones(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soft_loss, "_ROWS", 3)
    torch.manual_seed(0)
    states = torch.randn(8, 5, requires_grad=True)
    weight, bias = torch.randn(11, 5), torch.randn(11)
    chances, labels = (2 * torch.randn(8, 11)).softmax(-1), torch.randint(11, (8,))
    by = torch.rand(8)
    expected = dense(F.linear(states, weight, bias), chances, labels, kind)
    (gradient,) = torch.autograd.grad((expected * by).sum(), states)
    taught = chances, (chances * chances.log()).sum(-1)
    loss, best, overlap = head_loss(
        states,
        (weight, bias),
        lambda rows: (taught[0][rows], taught[1][rows]),
        labels,
        kind,
        lambda rows, logits: None,
    )
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-4)
    (found,) = torch.autograd.grad((loss * by).sum(), states)
    torch.testing.assert_close(found, gradient, atol=1e-5, rtol=1e-4)
    logits = F.linear(states, weight, bias).detach().requires_grad_(True)
    assert torch.equal(best, logits.argmax(-1))
    torch.testing.assert_close(overlap, torch.minimum(logits.softmax(-1), chances).sum(-1))
    loss, _, _ = head_loss(
        logits, None, lambda rows: (taught[0][rows], taught[1][rows]), labels, kind
    )
    (found,) = torch.autograd.grad((loss * by).sum(), logits)
    again = dense(logits, chances, labels, kind)
    (gradient,) = torch.autograd.grad((again * by).sum(), logits)
    torch.testing.assert_close(found, gradient, atol=1e-5, rtol=1e-4)


def batch_of(rows: int = 2, length: int = 7, hidden: int = 5, vocab: int = 9) -> Batch:
    """Two texts per row, of 4 and of 3 tokens; places at the beginning of each."""
    torch.manual_seed(1)
    text = torch.tensor([0, 0, 0, 0, 1, 1, 1]).expand(rows, -1)
    place = torch.tensor([True, True, False, False, True, False, False]).expand(rows, -1)
    position = torch.tensor([0, 1, 2, 3, 0, 1, 2]).expand(rows, -1)
    greedy = torch.randint(vocab, (rows, length))
    states = torch.randn(rows, length, 1, hidden).half()
    source = text + 2 * torch.arange(rows)[:, None]
    return Batch(greedy, states, greedy, text, source, position, position, place, place)


@pytest.mark.parametrize("kept", [True, False], ids=["table", "anew"])
@pytest.mark.parametrize("dense_head", [True, False])
def test_a_head_is_scored_against_the_state_it_leads_to(
    kept: bool, dense_head: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One place after the other, by the definition of a place."""
    monkeypatch.setattr(scorer_module, "_TABLE_BYTES", {"cpu": 1 << 28 if kept else 0})
    ids = torch.tensor([0, 2, 3, 4, 6, 8])
    batch, settings = batch_of(), TrainerSettings(heads=2, decay=0.5)
    weight, bias = torch.randn(6, 5), torch.randn(6)
    teacher = Teacher((weight, bias), ids, 9)
    points, valid = batch.points()
    guesses = [torch.randn(*points.shape, 5, requires_grad=True) for _ in range(2)]
    tally = Tally(4, 2)
    scorer = Scorer(batch, teacher, settings, tally)
    means, asked = [], np.zeros((4, 2))
    silent, right = np.zeros((4, 2)), np.zeros((4, 2))
    for head, states in enumerate(guesses):
        logits = F.linear(states, weight, bias)
        if dense_head:
            scorer.add(head, logits, points, valid, as_logits=True)
        else:
            scorer.add(head, states, points, valid)
        terms = []
        for row, column in valid.nonzero().tolist():
            at = int(points[row, column])
            end = 4 if at < 4 else 7
            if at + 2 + head >= end:
                continue
            source, said = int(batch.source[row, at]), int(batch.greedy[row, at + 1 + head])
            asked[source, head] += 1
            if said not in ids:
                silent[source, head] += 1
                continue
            own = batch.last[row, at + 1 + head]
            chances = F.linear(own, weight, bias).softmax(-1)[None]
            label = (ids == said).nonzero()[0]
            right[source, head] += int(logits[row, column].argmax() == label)
            terms.append(dense(logits[row, column][None], chances, label, "kl"))
        means.append(torch.cat(terms).mean() * 0.5**head)
    scorer.penalty(torch.tensor(0.25))
    expected = torch.stack(means).mean() + 0.25
    torch.testing.assert_close(scorer.loss, expected, atol=1e-5, rtol=1e-4)
    gradients = torch.autograd.grad(scorer.loss, guesses, retain_graph=True)
    for found, wanted in zip(gradients, torch.autograd.grad(expected, guesses)):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
    assert silent.sum() > 0 and right.sum() > 0
    assert np.array_equal(tally.points, asked) and np.array_equal(tally.silent, silent)
    assert np.array_equal(tally.hits[..., 0], right)


def test_a_chain_ends_with_its_first_wrong_guess() -> None:
    tally, text = Tally(2, 2), torch.tensor([0, 0, 1])
    nothing = torch.zeros(3)
    tally.add(0, text, torch.tensor([0, 1, 0]), nothing, torch.tensor([True, False, True]))
    tally.add(1, text, torch.tensor([0, 0, -1]), nothing, torch.tensor([True, False, False]))
    found = tally.as_json()
    assert found["tokens_per_pass"] == 2.0  # one each, and three right guesses in chains
    assert found["top1"] == pytest.approx([2 / 3, 2 / 3], abs=1e-4)
    assert found["top2"] == pytest.approx([1.0, 2 / 3], abs=1e-4)
    assert found["cannot_be_guessed"] == pytest.approx([0.0, 1 / 3], abs=1e-4)
    assert tally.table.rows[0][:2] == pytest.approx((2 / 3, 1 / 3))


def test_an_interval_holds_what_other_texts_would_give() -> None:
    """Of texts that are right all over or wrong all over, places do not matter: texts do."""
    random = np.random.default_rng(3)
    texts, held = 60, 0
    for _ in range(200):
        right = (random.random(texts) < 0.3) * 100.0
        low, high = bootstrap(texts, lambda drawn: right @ drawn / (100 * drawn.sum(axis=0)))  # noqa: B023
        held += low <= 0.3 <= high
        assert 0.1 < high - low < 0.35
    assert 0.88 < held / 200 <= 1.0
