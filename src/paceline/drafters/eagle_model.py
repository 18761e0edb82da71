"""EAGLE's draft model: one transformer block that reads a feature and the token chosen after it.

Each place of the text but the first has a *row*. It reads the feature of the place before and the
embedding of its own token (EAGLE, arXiv 2401.15077, section 3.1), and its output guesses the token
after. A feature is the target's last hidden state or, in EAGLE-3 (arXiv 2503.01840, section 3.1),
the fused outputs of a few chosen layers. Where the target has not been yet, the output of the row
before replaces the feature, so the same block and the target's own output head draft to any depth:

    place        0    1         2         3 (the root)   4 (a guess)        5 (a guess after it)
    token        a    b         c         d              e                  f
    reads             f(a), b   f(b), c   f(c), d        own output at d, e own output at e, f
    guesses           c         d         e              f                  …

A row sees all rows of the text before it, and of guesses those on the path from the root. Features,
outputs and embeddings are normalised before they meet, each with its own scale.
"""

from __future__ import annotations

import torch
from torch import nn

from paceline.drafters.attention_rows import Columns, DraftBlock, Stretches, normal
from paceline.drafters.head_module import Embed, HeadModule, OutputHead, identities
from paceline.trained_configs import EagleConfig


class EagleModel(HeadModule, DraftBlock):
    """The block between the target's embeddings and its output head.

    head, token_ids: see `HeadModule`. embed: the target's embeddings, frozen.

    width: numbers of a feature.

    Parameters, besides those of `DraftBlock`: "feature_norm", "own_norm", "word_norm", "row_norm",
    "last_norm" [hidden]; "enter" joins feature and embedding; where layers are tapped "tap_norms"
    [layers, hidden] and "fuse".
    """

    def __init__(
        self,
        config: EagleConfig,
        head: OutputHead,
        embed: Embed,
        token_ids: torch.Tensor | None = None,
    ) -> None:
        super().__init__(head, token_ids)
        self.config: EagleConfig = config
        hidden = self.hidden_size
        self.width = hidden * max(1, len(config.layers))
        self._embed = (embed,)  # a tuple keeps it out of the module's own parts
        if config.layers:
            self.tap_norms = nn.Parameter(torch.ones(len(config.layers), hidden))
            self.fuse = nn.Linear(self.width, hidden, bias=False)
        self.feature_norm = nn.Parameter(torch.ones(hidden))
        self.own_norm = nn.Parameter(torch.ones(hidden))
        self.word_norm = nn.Parameter(torch.ones(hidden))
        self.row_norm = nn.Parameter(torch.ones(hidden))
        self.inner_norm = nn.Parameter(torch.ones(hidden))
        self.last_norm = nn.Parameter(torch.ones(hidden))
        self.enter = nn.Linear(2 * hidden, hidden, bias=False)
        self._add_layers(config, hidden)
        # It starts with the sum of feature and embedding, and the mean of all layers.
        with torch.no_grad():
            self.enter.weight.copy_(identities(hidden, 2))
            if taps := len(config.layers):
                self.fuse.weight.copy_(identities(hidden, taps, value=1 / taps))
        self.to(self.device)

    def embeddings(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens int64 [...] -> their embeddings [..., hidden]."""
        return self._embed[0](tokens)

    def rows_of_text(self, features: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """Inputs of rows, [..., hidden]: features [..., width] of the places before them and
        `embeddings` [..., hidden] of their own tokens."""
        if self.config.layers:
            # A scale for each layer, after a norm without one.
            by_layer = torch.unflatten(features, -1, (-1, self.hidden_size))
            taps = normal(by_layer, torch.ones_like(self.tap_norms[0]))
            features = self.fuse((taps * self.tap_norms).flatten(-2))
        return self._rows(features, self.feature_norm, words)

    def rows_of_guesses(self, outputs: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """The same, with outputs [..., hidden] of the rows before them."""
        return self._rows(outputs, self.own_norm, words)

    def _rows(self, before: torch.Tensor, norm: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        both = normal(before, norm), normal(words, self.word_norm)
        found: torch.Tensor = self.enter(torch.cat(both, dim=-1))
        return found

    def run(
        self,
        held: torch.Tensor,
        rows: torch.Tensor,
        places: torch.Tensor,
        slots: torch.Tensor,
        sees: torch.Tensor,
    ) -> torch.Tensor:
        """Outputs [m, hidden] of the last m of rows [n, hidden] at places int64 [n], whose columns
        are written to slots [n] of `held` first, keys and values [2, 1, KV heads, room, head size].
        sees: [m, room] bool, which columns each of the m rows sees, its own included."""
        for one, new in zip(held, self._columns(rows[None], places[None], self.row_norm)):
            one.index_copy_(2, slots, new)
        last, at = rows[None, -len(sees) :], places[None, -len(sees) :]
        return self._outputs(last, at, self.row_norm, (held[0], held[1]), sees[None])[0]

    def ends(self, outputs: torch.Tensor) -> torch.Tensor:
        """What the target's output head reads of outputs [..., hidden]."""
        return normal(outputs, self.last_norm)

    def logits(self, outputs: torch.Tensor) -> torch.Tensor:
        """Logits [..., outputs] for the tokens after rows with these outputs [..., hidden]."""
        return self.shared_head(self.ends(outputs)).float()

    def forward(self, texts: Stretches, steps: int) -> list[torch.Tensor]:
        """Draft `steps` tokens after many points of texts at once, with the texts' own tokens as
        guesses. Each step sees the text up to its point and its own rows since, as in drafting.

        Returns the outputs [batch, n, hidden] of each step, whose `logits` are for the token 2 +
        step places after the point. Beyond a row's end its last token is read: drafts there mean
        nothing.
        """
        tokens, points = texts.tokens, texts.points
        words = self.embeddings(tokens.roll(-1, dims=1))
        rows = self.rows_of_text(texts.features.float(), words)
        columns, own = self._columns(rows, texts.position, self.row_norm), list[Columns]()
        at = texts.position.gather(1, points)
        rows = rows.gather(1, points[..., None].expand(-1, -1, rows.shape[-1]))
        found = [self._outputs(rows, at, self.row_norm, columns, texts.sees)]
        for step in range(1, steps):
            ahead = (points + 1 + step).clamp(max=tokens.shape[1] - 1)
            rows = self.rows_of_guesses(found[-1], self.embeddings(tokens.gather(1, ahead)))
            own.append(self._columns(rows, at + step, self.row_norm))
            found.append(self._outputs(rows, at + step, self.row_norm, columns, texts.sees, own))
        return found
