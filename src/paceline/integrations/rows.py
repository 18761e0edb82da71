"""The rows of a padded batch as separate texts, which keep transformers' view of the batch.

Processors and stopping criteria of transformers may look at the padding in front of a prompt, the
padded length, or the index of the row. So they are shown what they would see in a plain `generate`:
the padded row, in a batch of the same size if they are not known to ignore it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, cast

import torch
import transformers
from torch import nn

from paceline.errors import UsageError
from paceline.options import held_by

# Their result depends on their arguments alone, on any device.
_STATELESS = {
    transformers.EpsilonLogitsWarper,
    transformers.InfNanRemoveLogitsProcessor,
    transformers.LogitNormalization,
    transformers.MinPLogitsWarper,
    transformers.NoRepeatNGramLogitsProcessor,
    transformers.RepetitionPenaltyLogitsProcessor,
    transformers.TemperatureLogitsWarper,
    transformers.TopKLogitsWarper,
    transformers.TopPLogitsWarper,
    transformers.TypicalLogitsWarper,
}

# Of these, what a row gets is the same without the others; of penalties, `prompt_ignore_length`
# may name every row's.
_ALONE = _STATELESS - {transformers.RepetitionPenaltyLogitsProcessor}

# What rows may share: it keeps nothing of a text, and some of it is large.
_SHARED = _STATELESS | {transformers.MaxTimeCriteria, transformers.StopStringCriteria}
_SHARED_PARTS = (nn.Module, nn.Parameter, transformers.PreTrainedTokenizerBase)

Rules = Sequence[Callable[..., Any]]
"""Logits processors, or stopping criteria, of transformers."""


@dataclass(frozen=True)
class PromptRow:
    """One prompt of a batch.

    index, batch: which row of how many.
    padding: [1, pads] ids in front of the prompt.
    prompt: [1, length] ids without the padding.
    """

    index: int
    batch: int
    padding: torch.Tensor
    prompt: torch.Tensor

    @property
    def tokens(self) -> list[int]:
        """The prompt's token ids."""
        ids: list[int] = self.prompt[0].tolist()
        return ids

    def condition(self, criteria: Rules) -> Callable[[int], bool]:
        """Combine stopping criteria of transformers into one condition on this row's tokens."""
        ids = [*self.padding[0].tolist(), *self.tokens]

        def stopped(token: int) -> bool:
            ids.append(token)
            row = torch.tensor([ids], device=self.prompt.device)
            answers = [self._ends(criterion, row) for criterion in criteria]  # all: some count
            return any(answers)

        return stopped

    def _ends(self, criterion: Callable[..., Any], row: torch.Tensor) -> bool:
        rows = row if type(criterion) in _SHARED else row.repeat(self.batch, 1)
        answer = torch.as_tensor(criterion(rows, None), device="cpu").flatten()
        return bool(answer[self.index if len(answer) > 1 else 0])


@dataclass(frozen=True)
class RowProcessor:
    """A processor of transformers, for one row alone."""

    row: PromptRow
    processor: Callable[..., Any]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores of the text as if padding stood before it."""
        row, device = self.row, self.row.prompt.device  # where transformers has made its tensors
        full = torch.cat([row.padding, input_ids.to(device)], dim=1)
        own, processor = scores.to(device), cast("Any", self.processor)
        result: torch.Tensor
        if type(processor) in _ALONE:
            result = processor(full, own)
        elif type(processor) is transformers.PrefixConstrainedLogitsProcessor:
            rule = processor._prefix_allowed_tokens_fn  # it is told which row it is asked about
            alone = transformers.PrefixConstrainedLogitsProcessor(
                lambda _, ids: rule(row.index, ids), 1
            )
            result = alone(full, own)
        else:
            result = processor(full.repeat(row.batch, 1), own.repeat(row.batch, 1))
            result = result[row.index : row.index + 1]
        return result.to(scores.device)  # in its own dtype, as transformers takes it

    @property
    def temperature(self) -> float:
        """What it divides all scores by; see `Sampler.noise_scale`."""
        warper: Any = self.processor
        return warper.temperature if type(warper) is transformers.TemperatureLogitsWarper else 1.0

    @property
    def stateless(self) -> bool:
        """See `paceline.sampling.LogitsProcessor`. Third-party classes may keep any state."""
        return type(self.processor) in _STATELESS


def for_each_row(
    rows: Sequence[PromptRow],
    model: transformers.PreTrainedModel,
    processors: Rules,
    criteria: Rules,
) -> list[tuple[Rules, Rules]]:
    """Processors and criteria for every row. They may keep state, and rows are not in step, so each
    of several rows gets copies.

    Raises UsageError for one that cannot be copied.
    """
    if len(rows) == 1:
        return [(processors, criteria)]
    shared = _shared_by_rows(model, [*processors, *criteria])
    # With one memo per row, what a processor and a criterion share, their copies share as well.
    memos = [dict(shared) for _ in rows]
    return [
        ([_copied(p, memo) for p in processors], [_copied(c, memo) for c in criteria])
        for memo in memos
    ]


def _shared_by_rows(model: transformers.PreTrainedModel, rules: Rules) -> dict[int, Any]:
    """What is not copied, by id: a memo of `deepcopy`."""
    parts = [part for rule in rules for part in held_by(rule)]
    shared: list[Any] = [rule for rule in rules if type(rule) in _SHARED]
    shared += [part for part in (model, *parts) if isinstance(part, _SHARED_PARTS)]
    return {id(each): each for each in shared}


def _copied(rule: Callable[..., Any], memo: dict[int, Any]) -> Callable[..., Any]:
    try:
        return deepcopy(rule, memo)
    except Exception as error:
        raise UsageError(
            f"{type(rule).__name__} cannot be copied for each row of a batch ({error}): generate "
            "the rows one by one"
        ) from error


def split_rows(input_ids: torch.Tensor, model_kwargs: Mapping[str, Any]) -> list[PromptRow]:
    """Split a left-padded batch: input_ids [batch, length], attention_mask alike or None.

    Raises UsageError for what is no batch of ids, a batch without rows, an empty row, a mask of
    another shape, padding anywhere but in front, and custom positions.
    """
    if input_ids.dim() != 2 or input_ids.dtype.is_floating_point:
        raise UsageError(
            f"input_ids are {input_ids.dtype} with the shape {tuple(input_ids.shape)}: pass whole "
            "numbers, one row per prompt, as the tokenizer returns them"
        )
    if not len(input_ids):
        raise UsageError("the batch holds no prompt: give at least one")
    mask = model_kwargs.get("attention_mask")
    mask = torch.ones_like(input_ids) if mask is None else mask.to(input_ids.device)
    if mask.shape != input_ids.shape:
        raise UsageError(
            f"attention_mask has the shape {tuple(mask.shape)} but the prompts have "
            f"{tuple(input_ids.shape)}: pass both as the tokenizer returns them"
        )
    positions = model_kwargs.get("position_ids")
    rows = []
    for index, row in enumerate(mask.bool()):
        pads = int((~row).sum())
        if not bool(row[pads:].all()):
            raise UsageError(
                "the batch is padded after or inside its prompts: pad on the left "
                '(tokenizer.padding_side = "left") and pass the attention_mask'
            )
        length = len(row) - pads
        if not length:
            raise UsageError(f"prompt {index} of the batch is empty: give at least one token")
        if positions is not None and not _counts(positions, index, length):
            raise UsageError("position_ids other than 0, 1, 2, … are not supported")
        prompt = input_ids[index : index + 1]
        rows.append(PromptRow(index, len(mask), prompt[:, :pads], prompt[:, pads:]))
    return rows


def _counts(positions: torch.Tensor, index: int, length: int) -> bool:
    """Whether a prompt's positions are 0, 1, 2, … in all axes: of a text, those of a multimodal
    model agree.

    positions: [batch or 1, padded length], or [axes, batch or 1, padded length].
    """
    axes = positions if positions.dim() == 3 else positions[None]
    own = axes[:, index if axes.shape[1] > 1 else 0, -length:].cpu()
    return torch.equal(own, torch.arange(length, device="cpu").expand(len(own), -1))
