"""Scoring a method's guesses: labels, loss and counts are made here, alike for all methods."""

from __future__ import annotations

import torch

from paceline.kernels.blocks import rounded_numbers
from paceline.training.batches import Batch
from paceline.training.settings import TrainerSettings
from paceline.training.soft_loss import Head, Taught, head_loss, rows_at_once
from paceline.training.tally import RANKS, Tally

# Most that distributions kept for all heads of a batch may take.
_TABLE_BYTES = {"cpu": 1 << 28, "cuda": 1 << 31}


def rounded_head(head: Head, bits: int) -> Head:
    """An output head with its weights rounded to 4 or 8 bits; 0 leaves it."""
    return (rounded_numbers(head[0], bits), head[1].float()) if bits else head


class Teacher:
    """The target's output head, for the tokens that can be guessed.

    head: for those tokens. token_ids: [columns] int64; None for all. vocab_size: of the target.
    bits: of the head that guesses end in; 0: they end in the target's.

    guessing: that head. columns: [vocab_size] int64, the column of each token, -1 for those without
    one.
    """

    def __init__(
        self, head: Head, token_ids: torch.Tensor | None, vocab_size: int, bits: int = 0
    ) -> None:
        self.head = head[0].float(), head[1].float()
        self.guessing = rounded_head(self.head, bits)
        ids = torch.arange(vocab_size) if token_ids is None else token_ids
        columns = torch.full((vocab_size,), -1)
        columns[ids.cpu()] = torch.arange(len(ids))
        self.columns = columns.to(self.head[0].device)

    @torch.no_grad()
    def chances(self, states: torch.Tensor) -> Taught:
        """The target's distributions after last states [n, hidden]."""
        weight, bias = self.head
        shares = torch.addmm(bias, states, weight.T).softmax(dim=-1)
        return shares, torch.special.xlogy(shares, shares).sum(dim=-1)


class Scorer:
    """Scores what the heads of a method guess on one batch.

    tally: counts guesses by text, too; None for no counts.
    """

    def __init__(
        self, batch: Batch, teacher: Teacher, settings: TrainerSettings, tally: Tally | None = None
    ) -> None:
        self.batch = batch
        self._teacher = teacher
        self._settings = settings
        self._tally = tally
        self._heads: dict[int, tuple[torch.Tensor, int]] = {}  # sum of losses, and their count
        self._penalties: list[torch.Tensor] = []
        self._chained: torch.Tensor | None = None
        self._table, self._rows = self._made_table()

    def penalty(self, term: torch.Tensor) -> None:
        """Add a scalar term to the loss."""
        self._penalties.append(term)

    @property
    def loss(self) -> torch.Tensor:
        """The mean over heads of decay^head times the mean over its places, plus the penalties."""
        terms = [
            self._settings.decay**head * loss / max(count, 1)
            for head, (loss, count) in self._heads.items()
        ]
        total = torch.stack(terms).mean()
        return total + sum(self._penalties) if self._penalties else total

    def add(
        self,
        head: int,
        guesses: torch.Tensor,
        points: torch.Tensor,
        valid: torch.Tensor,
        as_logits: bool = False,
    ) -> None:
        """Add guesses of a head, from 0.

        guesses: states [rows, n, hidden], that end in the target's output head; or, `as_logits`,
        [rows, n, columns] from an output head of the method's own. points: [rows, n] int64, the
        places they are for. valid: [rows, n] bool, which of them count.
        """
        there = valid & self.batch.has(points, head + 2)
        length = self.batch.tokens.shape[1]
        rows = torch.arange(len(points), device=points.device)[:, None] * length
        index = (rows + points + head + 1)[there]
        columns = self._teacher.columns[self.batch.greedy.flatten()[index]]
        known = columns >= 0
        labels, places = columns[known], index[known]
        ranks = torch.full_like(labels, RANKS)

        def chances(some: slice) -> Taught:
            if self._table is None:
                return self._teacher.chances(self._last_states(places[some]))
            at = self._rows[places[some]]
            return self._table[0][at], self._table[1][at]

        def ranked(some: slice, logits: torch.Tensor) -> None:
            ranks[some] = _ranks(logits, labels[some])

        told = None if self._tally is None else ranked
        asked, kind = guesses[there][known].float(), self._settings.loss
        end = None if as_logits else self._teacher.guessing
        with torch.autocast(asked.device.type, enabled=False):
            loss, best, acceptance = head_loss(asked, end, chances, labels, kind, told)
        self._heads[head] = loss.sum(), len(labels)
        if self._tally is None:
            return
        hits = torch.zeros_like(known)
        hits[known] = best == labels
        chained = torch.zeros_like(there)
        chained[there] = hits
        if self._chained is not None:
            chained &= self._chained
        self._chained = chained
        rank = torch.full_like(known, -1, dtype=torch.int64)
        rank[known] = ranks
        accepted = acceptance.new_zeros(len(known))
        accepted[known] = acceptance
        source = self.batch.source.gather(1, points)[there]
        self._tally.add(head, source, rank, accepted, chained[there])

    def _made_table(self) -> tuple[Taught | None, torch.Tensor]:
        """The distributions at all positions that labels come from, since several heads need each,
        None if they would take too much memory; and the row of every position of the flat batch."""
        needed = torch.zeros_like(self.batch.place)
        for ahead in range(1, self._settings.heads + 1):
            needed[:, ahead:] |= self.batch.place[:, :-ahead]
        index = needed.flatten().nonzero()[:, 0]
        rows = torch.zeros(needed.numel(), dtype=torch.int64, device=index.device)
        rows[index] = torch.arange(len(index), device=index.device)
        columns = len(self._teacher.head[1])
        most = _TABLE_BYTES.get(index.device.type, _TABLE_BYTES["cpu"])
        if len(index) * columns * 4 > most:
            return None, rows
        table = torch.empty(len(index), columns, device=index.device)
        entropies = torch.empty(len(index), device=index.device)
        states = self._last_states(index)
        size = rows_at_once(index.device, columns)
        for first in range(0, len(index), size):
            some = slice(first, first + size)
            table[some], entropies[some] = self._teacher.chances(states[some])
        return (table, entropies), rows

    def _last_states(self, index: torch.Tensor) -> torch.Tensor:
        return self.batch.states[:, :, -1].flatten(0, 1)[index].float()


def _ranks(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """[n] int64: the rank of each label among the logits, from 0; RANKS if it is beyond."""
    ranks = min(RANKS, logits.shape[-1])
    right = logits.topk(ranks, dim=-1).indices == labels[:, None]
    missed = torch.ones_like(right[:, :1])
    found = torch.cat([right, missed], dim=-1).long().argmax(dim=-1)
    return torch.where(found < ranks, found, RANKS)
