"""Prompt tokens behind many points of texts at once, as a module whose few parameters learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.nn import functional as F
from transformers import DynamicCache, PreTrainedModel

from paceline.drafters.prompt_tokens import PromptConfig
from paceline.errors import ModelError, UsageError
from paceline.targets.support import attention_windows
from paceline.training.final_norm import final_norm
from paceline.training.ppd.insertion import Insertion
from paceline.training.ppd.teacher import Lesson

__all__ = ["PromptModel", "initial_embeddings"]


class PromptModel(nn.Module):
    """The trained parts and the frozen model that runs them (PPD, chapter 4).

    model: frozen.
    embeddings: [prompt_tokens, epts, hidden], where training begins.

    Parameters are kept in float32, whatever the model's precision.
    """

    prefix_keys: nn.Parameter
    prefix_values: nn.Parameter

    def __init__(
        self, model: PreTrainedModel, config: PromptConfig, embeddings: torch.Tensor
    ) -> None:
        super().__init__()
        self.config = config
        # Kept out of the module's own parameters and checkpoints.
        self._frozen = (model,)
        self.embeddings = nn.Parameter(embeddings.float().clone())
        if config.learned_weights:
            shape = (config.prompt_tokens, config.epts)
            self.ept_weights = nn.Parameter(torch.full(shape, 1 / config.epts))
        self._add_prefix(model)
        self.head = _head(model, config)
        self.to(model.get_input_embeddings().weight.device)

    @property
    def model(self) -> PreTrainedModel:
        """The frozen one."""
        return self._frozen[0]

    def forward(self, lesson: Lesson) -> torch.Tensor:
        """Logits [batch, n, prompt_tokens, vocabulary] of the prompt tokens behind each point."""
        config, batch = self.config, len(lesson.points)
        insertion = Insertion(lesson.points, config, lesson.length)
        rows = self.embeddings.flatten(0, 1)[insertion.embedding_rows]
        dtype = self.model.dtype
        device = rows.device
        outputs = self.model(
            inputs_embeds=rows.to(dtype).expand(batch, -1, -1),
            position_ids=insertion.positions.to(device),
            attention_mask=self._masks(insertion, dtype, device),
            past_key_values=self._cache(lesson),
            use_cache=True,
            output_hidden_states=self._reads_states,
            **({"logits_to_keep": 1} if self._reads_states else {}),
        )
        logits = self._scores(outputs.hidden_states) if self._reads_states else outputs.logits
        shape = (insertion.points.shape[1], config.prompt_tokens, config.epts)
        return self._united(logits.float().unflatten(1, shape))

    def tensors(self) -> dict[str, torch.Tensor]:
        """The trained parts by name, detached; see `PromptTokens.tensors`."""
        return {name: part.detach().clone() for name, part in self.named_parameters()}

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take over trained parts, but for those that this configuration does not have; what is
        missing among them stays as it is. So a second stage of training begins.

        Raises UsageError, naming the part, where one has another shape.
        """
        own = dict(self.named_parameters())
        for name in own.keys() & tensors.keys():
            if own[name].shape != tensors[name].shape:
                raise UsageError(
                    f"the {name} to begin with are {tuple(tensors[name].shape)}, not "
                    f"{tuple(own[name].shape)}: train with the same prompt tokens and EPTs"
                )
        with torch.no_grad():
            for name, tensor in tensors.items():
                if name in own:
                    own[name].copy_(tensor)

    @property
    def _reads_states(self) -> bool:
        return self.config.head != "shared" or self.config.exits > 1

    def _united(self, logits: torch.Tensor) -> torch.Tensor:
        """[batch, n, prompt_tokens, epts, vocabulary] -> the logits of each prompt token (4.4.4)."""
        if self.config.learned_weights:
            return (logits * self.ept_weights[:, :, None]).sum(dim=-2)
        return logits.mean(dim=-2)

    def _masks(
        self, insertion: Insertion, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor | dict[str, torch.Tensor]:
        """Float masks [batch, 1, rows, slots]; one per kind of layer where kinds differ."""
        windows = attention_windows(self.model.config.get_text_config())
        masks = {}
        for kind, window in windows.items():
            hidden = ~insertion.visible(window).to(device)
            mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
            masks[kind] = mask.masked_fill_(hidden, torch.finfo(dtype).min)[:, None]
        return masks if len(masks) > 1 else masks.popitem()[1]

    def _cache(self, lesson: Lesson) -> DynamicCache:
        """A fresh cache with the text, behind the prefix tokens where there are any."""
        cache = DynamicCache()
        for number, (keys, values) in enumerate(lesson.layers):
            if self.config.prefix_tokens:
                keys = _behind(self.prefix_keys[number], keys)
                values = _behind(self.prefix_values[number], values)
            cache.update(keys, values, number)
        return cache

    def _add_prefix(self, model: PreTrainedModel) -> None:
        """Small random keys and values [layers, prompt_tokens, prefix_tokens, KV heads, size]."""
        if not self.config.prefix_tokens:
            return
        cache = DynamicCache()
        device = model.get_input_embeddings().weight.device
        with torch.no_grad():
            model(torch.tensor([[0]], device=device), past_key_values=cache, use_cache=True)
        noise = torch.Generator().manual_seed(0)
        for name in ("keys", "values"):
            sizes = {getattr(layer, name).shape[1::2] for layer in cache.layers}
            if len(sizes) > 1:
                raise ModelError("prefix tokens need layers with keys and values of one size")
            shape = (len(cache.layers), self.config.prompt_tokens, self.config.prefix_tokens)
            start = 0.02 * torch.randn(*shape, *sizes.pop(), generator=noise)
            setattr(self, f"prefix_{name}", nn.Parameter(start))

    def _scores(self, states: Sequence[torch.Tensor]) -> torch.Tensor:
        """Logits from the states of the last layers (4.4.5) through the head (4.4.2)."""
        last = states[-1]
        if self.config.exits > 1:
            # Only the last state has gone through the model's last normalisation.
            norm = final_norm(self.model)
            earlier = [norm(state) for state in states[-self.config.exits : -1]]
            last = torch.stack([last, *earlier]).mean(dim=0)
        if self.config.head == "full":
            assert self.head is not None  # noqa: S101 - for the type checker
            logits: torch.Tensor = self.head(last.float())
            return logits
        if self.head is not None:
            last = last + F.silu(self.head(last.float())).to(last)
        scores: torch.Tensor = self.model.get_output_embeddings()(last)
        return scores


def initial_embeddings(
    model: PreTrainedModel, config: PromptConfig, tokens: Sequence[int]
) -> torch.Tensor:
    """[prompt_tokens, epts, hidden]: the input embeddings of text tokens (PPD, section 6.1.2), in
    turns; alike ones among the embeddings of one prompt token are told apart by a little noise,
    since they would learn the same."""
    device = model.get_input_embeddings().weight.device
    count = config.prompt_tokens * config.epts
    ids = torch.tensor([tokens[place % len(tokens)] for place in range(count)], device=device)
    found = model.get_input_embeddings()(ids).detach().float()
    if count > len(tokens):
        noise = torch.randn(found.shape, generator=torch.Generator().manual_seed(0))
        found = found + 0.1 * found.std() * noise.to(device)
    embeddings: torch.Tensor = found.view(config.prompt_tokens, config.epts, -1)
    return embeddings


def _behind(prefix: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
    """Keys or values [batch, heads, slots, size] with those of all prefix tokens before them."""
    own = prefix.flatten(0, 1).transpose(0, 1).to(held)
    return torch.cat([own.expand(len(held), -1, -1, -1), held], dim=2)


def _head(model: PreTrainedModel, config: PromptConfig) -> nn.Linear | None:
    """A head that begins as the model's own: a copy of it, or a block that adds nothing yet."""
    if config.head == "shared":
        return None
    own = model.get_output_embeddings()
    if own is None:
        raise ModelError(f"{type(model).__name__} has no output head to begin with")
    vocabulary, hidden = own.weight.shape
    if config.head == "full":
        head = nn.Linear(hidden, vocabulary, bias=False)
        head.weight.data.copy_(own.weight)
        return head
    head = nn.Linear(hidden, hidden)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head
