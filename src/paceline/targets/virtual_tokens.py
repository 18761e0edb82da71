"""Embeddings of ids beyond the vocabulary, and a lookup that includes them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from paceline.errors import UsageError


class VirtualTokens:
    """The virtual tokens that drafters let a model read.

    embed: the model's embedding module; ids [batch, width] -> `inputs_embeds` of the model
    [batch, width, hidden].
    vocab_size, first: the first virtual id. table: [count, hidden], their embeddings.
    """

    def __init__(self, embed: Callable[[torch.Tensor], torch.Tensor], vocab_size: int) -> None:
        self._embed = embed
        self.first = vocab_size
        self._given: list[tuple[int, torch.Tensor]] = []
        self.table: torch.Tensor | None = None

    def __len__(self) -> int:
        return 0 if self.table is None else self.table.shape[0]

    @torch.no_grad()
    def add(self, embeddings: torch.Tensor, device: torch.device) -> int:
        """See `Target.add_virtual_tokens`. device: of the ids that `embed` takes."""
        for first, known in self._given:
            if torch.equal(known, embeddings.to(known)):
                return first
        # In the dtype and on the device of the model's own, so that no pass has to convert them.
        like = self._embed(torch.zeros(1, 1, dtype=torch.long, device=device))
        hidden = like.shape[-1]
        if embeddings.dim() != 2 or embeddings.shape[1] != hidden or not len(embeddings):
            raise UsageError(
                f"virtual tokens need embeddings of {hidden} numbers for this model, got "
                f"{' x '.join(map(str, embeddings.shape))}"
            )
        first = self.first + len(self)
        # Compiled passes read it as one block, and the caller may change its own.
        rows = embeddings.detach().to(like).clone(memory_format=torch.contiguous_format)
        self.table = rows if self.table is None else torch.cat([self.table, rows])
        self._given.append((first, rows))
        return first

    def check(self, largest: int) -> None:
        """Raises UsageError if the id `largest` has no embedding: a GPU would end the process."""
        if largest >= self.first + len(self):
            raise UsageError(
                f"the tree holds the virtual token id {largest}, but only {len(self)} ids from "
                f"{self.first} up have embeddings: add them with add_virtual_tokens"
            )

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Return embeddings of ids [batch, width], which may be virtual."""
        virtual = ids >= self.first
        own = self._embed(ids.masked_fill(virtual, 0))
        table = own.new_zeros(1, own.shape[-1]) if self.table is None else self.table
        given = table[(ids - self.first).clamp(min=0)].to(own)
        return torch.where(virtual[..., None], given, own)
