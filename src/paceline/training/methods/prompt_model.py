"""Prompt tokens after many points of texts at once, as a module with few parameters.

Prompt tokens after the text's token at `point` see the text up to that token and one another; the
text does not see them. So any number of points of a window can share one pass, as long as a mask
keeps their rows apart (PPD, section 4.3.1: random insertion; the official code has one point per
text).

    text: a b c d e, points 1 and 2, two prompt tokens, one embedding each

    row   point  sees            position   its guess is compared with
    S1    1      a b, S1         2          d
    S2    1      a b, S1 S2      3          e
    S1    2      a b c, S1       3          e
    …
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import DynamicCache, PreTrainedModel

from paceline.errors import ModelError
from paceline.targets.support import cache_argument, longest_context
from paceline.trained_configs import PromptConfig
from paceline.training.batches import Batch, masks_of
from paceline.training.method import Base
from paceline.training.methods.last_layer import final_norm_of

_STARTING_TOKENS = 512


def among_one_point(config: PromptConfig) -> torch.Tensor:
    """[rows, rows] bool for the rows of one point, ordered by prompt token and then by embedding:
    which sees which (PPD, section 4.4.3).

    ensemble: the same embedding of this and earlier prompt tokens.
    decoder: all earlier rows, including those of the same prompt token (figure 4.7).
    encoder: all embeddings of this and earlier prompt tokens (section 4.4.3; the official code
    leaves out the earlier ones).
    """
    rows = torch.arange(config.prompt_tokens * config.epts)
    token, ept = rows // config.epts, rows % config.epts
    if config.mask == "ensemble":
        return (ept[:, None] == ept) & (token[:, None] >= token)
    if config.mask == "decoder":
        return rows[:, None] >= rows
    return token[:, None] >= token


@dataclass(frozen=True)
class PromptRows:
    """Prompt tokens at some points of a batch of windows.

    points: [batch, n] int64, places in the windows.

    Rows are ordered by point, then prompt token, then embedding: n x prompt_tokens x epts of them.
    """

    batch: Batch
    points: torch.Tensor
    config: PromptConfig

    @property
    def each(self) -> int:
        """Rows per point."""
        return self.config.prompt_tokens * self.config.epts

    @property
    def embeddings(self) -> torch.Tensor:
        """[rows] int64: which of the prompt_tokens x epts embeddings each row reads."""
        return torch.arange(self.each, device=self.points.device).repeat(self.points.shape[1])

    @property
    def positions(self) -> torch.Tensor:
        """[batch, rows] int64: the i-th prompt token has the position of the i-th token to come."""
        ahead = 1 + torch.arange(self.each, device=self.points.device) // self.config.epts
        at = self.batch.position.gather(1, self.points)
        return (at[:, :, None] + ahead).flatten(1)

    def visible(self, window: int | None = None) -> torch.Tensor:
        """[batch, rows, slots] bool: the prefix tokens, the window, and the rows themselves.

        window: most positions that a layer sees, its own included; None for all.
        """
        positions, n = self.positions, self.points.shape[1]
        sees_text = self.batch.sees(self.points).repeat_interleave(self.each, dim=1)
        row = torch.arange(n * self.each, device=positions.device)
        point, token = row // self.each, row % self.each // self.config.epts
        among = among_one_point(self.config).to(positions.device).repeat(n, n)
        sees_rows = ((point[:, None] == point) & among).expand(len(positions), -1, -1)
        # The i-th prompt token sees the i-th stretch of prefix tokens (section 4.4.1).
        several = self.config.prefix_tokens
        slots = torch.arange(self.config.prompt_tokens * several, device=positions.device)
        sees_prefix = token[:, None] == slots // max(several, 1)
        if window is not None:
            sees_text = sees_text & (positions[:, :, None] - self.batch.position[:, None] < window)
            sees_rows = sees_rows & (positions[:, :, None] - positions[:, None] < window)
        sees_prefix = sees_prefix.expand(len(positions), -1, -1)
        return torch.cat([sees_prefix, sees_text, sees_rows], dim=-1)


class PromptModel(nn.Module):
    """The trained parts and the frozen model that runs them (PPD, chapter 4).

    Parameters are kept in float32, whatever the model's precision.
    """

    prefix_keys: nn.Parameter
    prefix_values: nn.Parameter

    def __init__(self, base: Base, config: PromptConfig) -> None:
        super().__init__()
        self.config = config
        # A tuple keeps it out of the module's own parameters and checkpoints.
        self._frozen = (base.model,)
        self._positions = longest_context(base.model.config.get_text_config()) or sys.maxsize
        self.embeddings = nn.Parameter(_initial_embeddings(base, config))
        if config.learned_weights:
            shape = (config.prompt_tokens, config.epts)
            self.ept_weights = nn.Parameter(torch.full(shape, 1 / config.epts))
        self._add_prefix(base.model)
        self.head = _head(base, config)
        self.to(self.embeddings.device)

    @property
    def model(self) -> PreTrainedModel:
        """The frozen model."""
        return self._frozen[0]

    def forward(self, batch: Batch, points: torch.Tensor) -> torch.Tensor:
        """What an output head (the model's own, or `head` if that is a full one) reads of the
        prompt tokens after each point, [batch, n, prompt_tokens, hidden] float32.

        points: [batch, n] int64. Averaging the states of a prompt token's embeddings averages their
        logits (4.4.4), since the head is linear.
        """
        rows = PromptRows(batch, points, self.config)
        shape = (points.shape[1], self.config.prompt_tokens, self.config.epts)
        states = self._states(rows).float()
        states = states.view(len(states), *shape, -1)
        if not self.config.learned_weights:
            return states.mean(dim=-2)
        weighed: torch.Tensor = (states * self.ept_weights[:, :, None]).sum(dim=-2)
        return weighed

    def _states(self, rows: PromptRows) -> torch.Tensor:
        """The states of the rows after their windows, [batch, rows, hidden]."""
        model, batch, read = self.model, rows.batch, DynamicCache()
        name = cache_argument(model)
        with torch.no_grad():  # keys and values of the windows, without prefix tokens
            model.base_model(
                batch.tokens,
                attention_mask=masks_of(model, batch.sees_back, model.dtype),
                position_ids=batch.position,
                **{name: read},
                use_cache=True,
            )
        embeddings = self.embeddings.flatten(0, 1)[rows.embeddings]
        outputs = model.base_model(
            inputs_embeds=embeddings.to(model.dtype).expand(len(rows.points), -1, -1),
            # Guesses beyond a text's end count for nothing, but there GPT-2's table may end.
            position_ids=rows.positions.clamp(max=self._positions - 1),
            attention_mask=masks_of(model, rows.visible, model.dtype),
            **{name: self._after_prefix(read)},
            use_cache=True,
            output_hidden_states=self.config.exits > 1,
        )
        last: torch.Tensor = outputs.last_hidden_state
        if self.config.exits > 1:
            # Average the last layers (4.4.5); only the very last has been through the model's last
            # normalisation already.
            norm = final_norm_of(model)
            earlier = [norm(each) for each in outputs.hidden_states[-self.config.exits : -1]]
            last = torch.stack([last, *earlier]).mean(dim=0)
        if self.config.head == "small":
            assert self.head is not None  # noqa: S101 - for the type checker
            last = last + F.silu(self.head(last.float())).to(last)
        return last

    def _after_prefix(self, read: DynamicCache) -> DynamicCache:
        """A cache that begins with the prefix tokens."""
        if not self.config.prefix_tokens:
            return read
        cache = DynamicCache()
        for number, layer in enumerate(read.layers):
            keys = _joined(self.prefix_keys[number], layer.keys)
            values = _joined(self.prefix_values[number], layer.values)
            cache.update(keys, values, number)
        return cache

    def _add_prefix(self, model: PreTrainedModel) -> None:
        """Small random keys and values [layers, prompt_tokens, prefix_tokens, KV heads, size]."""
        if not self.config.prefix_tokens:
            return
        cache = DynamicCache()
        device = model.get_input_embeddings().weight.device
        with torch.no_grad():
            first = torch.tensor([[0]], device=device)
            model(first, use_cache=True, **{cache_argument(model): cache})
        noise = torch.Generator().manual_seed(0)
        for name in ("keys", "values"):
            sizes = {getattr(layer, name).shape[1::2] for layer in cache.layers}
            if len(sizes) > 1:
                raise ModelError(
                    "prefix tokens need keys and values of the same size in all layers"
                )
            shape = (len(cache.layers), self.config.prompt_tokens, self.config.prefix_tokens)
            start = 0.02 * torch.randn(*shape, *sizes.pop(), generator=noise)
            setattr(self, f"prefix_{name}", nn.Parameter(start))


def _initial_embeddings(base: Base, config: PromptConfig) -> torch.Tensor:
    """[prompt_tokens, epts, hidden] float32: the input embeddings of different tokens of answers
    (PPD, section 6.1.2), in turns. If tokens repeat, a little noise tells their embeddings apart,
    since alike ones of a prompt token would learn the same."""
    answers = (token for text in base.train for token in text.tokens[text.first :])
    tokens = list(dict.fromkeys(islice(answers, _STARTING_TOKENS)))
    table: Any = base.embed
    count = config.prompt_tokens * config.epts
    ids = [tokens[place % len(tokens)] for place in range(count)]
    found: torch.Tensor = table(torch.tensor(ids, device=table.weight.device)).detach().float()
    if count > len(tokens):
        noise = torch.randn(found.shape, generator=torch.Generator().manual_seed(0))
        found = found + 0.1 * found.std() * noise.to(found.device)
    return found.view(config.prompt_tokens, config.epts, -1).clone()


def _joined(prefix: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
    """Keys or values [batch, heads, slots, size], after those of all prefix tokens."""
    own = prefix.flatten(0, 1).transpose(0, 1).to(held)
    return torch.cat([own.expand(len(held), -1, -1, -1), held], dim=2)


def _head(base: Base, config: PromptConfig) -> nn.Linear | None:
    """A head that starts as the model's own: a copy, or a block that adds nothing yet."""
    if config.head == "shared":
        return None
    outputs, hidden = base.head[0].shape
    if config.head == "full":
        head = nn.Linear(hidden, outputs, bias=False)
        head.weight.data.copy_(base.head[0])
        return head
    head = nn.Linear(hidden, hidden)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head
