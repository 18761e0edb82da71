"""Chimera's encoders: of n-grams (section 4.1.1), which turns a text's last tokens into a green
state, and of the whole text (section 4.1.2), one transformer block over green states and the
target's own.

Each place of the text has two columns: the *mature* state of its token, after the target's last
normalisation, and the *green* state of the n-gram that ends there. The keys and values of a column
depend only on its state and place, so they are computed once and kept.

Rows are *draft nodes*: the root, which the target has not read yet, and guesses after it. A node's
query is its own green state. It sees

    mature and green columns of all tokens before the root,
    green columns of the nodes on the path from the root to itself, its own included,
    draft states of its ancestors, as columns like mature ones,

and yields its draft state, which is trained to match the mature state the target will have there.

    text … a b, root c; nodes d (child of c) and e (child of d). At the places of a, b, c, d, e:

    row   mature   green      draft
    c     … a b    … a b c
    d     … a b    … a b c d  c
    e     … a b    … a b c d e  c d

For later steps the official code intends this mask, but a wrong sign hides own draft states. There
the green columns of later steps are those of the guesses from all places at once; here they are
those of the tokens themselves, for which the guesses stand.

The block starts with random weights or as a copy of the target's last layer, see the
`ChimeraSettings` of training. Mature and green columns have a normalisation each, which tells the
two kinds apart. After the block there is none, as in the paper, or one like the target's last
(`final_norm`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from paceline.drafters.attention_rows import Columns, DraftBlock, normal
from paceline.drafters.head_module import Embed
from paceline.trained_configs import ChimeraConfig


def ngrams(tokens: torch.Tensor, order: int, start: torch.Tensor | None = None) -> torch.Tensor:
    """[batch, length, order] int64: the n-gram that ends at each place of texts [batch, length].
    start: [batch, length] int64, where the text of each place begins; None: all at 0. If a text has
    fewer tokens, the last one is repeated, as in the official code: a a a, a b b, a b c."""
    places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    begins = torch.zeros_like(places) if start is None else start
    wanted = ngram_places(places, order, begins)
    return tokens.gather(1, wanted.flatten(1)).view_as(wanted)


def ngram_places(places: torch.Tensor, order: int, start: torch.Tensor) -> torch.Tensor:
    """[...] int64 -> [..., order]: the places of the tokens of the n-gram that ends there."""
    first = torch.maximum(places - order + 1, start)[..., None]
    steps = torch.arange(order, device=places.device)
    return torch.minimum(first + steps, places[..., None])


class NgramEncoder(nn.Module):
    """A residual block and a linear layer on the embeddings of `order` tokens.

    embed: the target's embeddings, frozen. rank: see `ChimeraConfig`.

    Parameters: "block.weight" [order * hidden, order * hidden] and "block.bias", which start at
    zero; "down.weight" [hidden, order * hidden]. With a rank, "narrow.weight" [rank, order *
    hidden] precedes the block, which is [order * hidden, rank].
    """

    def __init__(self, order: int, hidden: int, embed: Embed, rank: int = 0) -> None:
        super().__init__()
        self.order = order
        self._embed = (embed,)  # a tuple keeps it out of the module's own parts
        width = order * hidden
        self.narrow = nn.Linear(width, rank, bias=False) if rank else None
        self.block = nn.Linear(rank or width, width)
        nn.init.zeros_(self.block.weight)
        nn.init.zeros_(self.block.bias)
        self.down = nn.Linear(order * hidden, hidden, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """n-grams int64 [..., order] -> green states [..., hidden]."""
        return self.encoded(self.embeddings(ids).flatten(-2).float())

    def encoded(self, words: torch.Tensor) -> torch.Tensor:
        """Embeddings [..., order * hidden] of n-grams, side by side -> green states [..., hidden]."""
        narrow = words if self.narrow is None else self.narrow(words)
        states: torch.Tensor = self.down(words + F.silu(self.block(narrow)))
        return states

    def embeddings(self, ids: torch.Tensor) -> torch.Tensor:
        """Tokens int64 [...] -> their embeddings [..., hidden]."""
        return self._embed[0](ids)

    def whole(self, tokens: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        """Texts int64 [batch, length] -> green states [batch, length, hidden]. See `ngrams`."""
        found: torch.Tensor = self(ngrams(tokens, self.order, start))
        return found


class ContextEncoder(DraftBlock):
    """The block; the module's docstring says what a row sees.

    Parameters, besides those of `DraftBlock`: "mature_norm", "green_norm" [hidden], with
    `final_norm` "output_norm".
    """

    output_norm: nn.Parameter | None

    def __init__(self, config: ChimeraConfig, hidden: int) -> None:
        super().__init__()
        self.mature_norm = nn.Parameter(torch.ones(hidden))
        self.green_norm = nn.Parameter(torch.ones(hidden))
        self.inner_norm = nn.Parameter(torch.ones(hidden))
        self._add_layers(config, hidden)
        self.output_norm = nn.Parameter(torch.ones(hidden)) if config.final_norm else None

    def mature(self, states: torch.Tensor, places: torch.Tensor) -> Columns:
        """Columns of mature or draft states [batch, n, hidden] at places int64 [batch, n]."""
        return self._columns(states, places, self.mature_norm)

    def green(self, states: torch.Tensor, places: torch.Tensor) -> Columns:
        """Columns of green states [batch, n, hidden] at places int64 [batch, n]."""
        return self._columns(states, places, self.green_norm)

    def forward(
        self,
        greens: torch.Tensor,
        places: torch.Tensor,
        columns: Columns,
        sees: torch.Tensor,
        own: Sequence[Columns] = (),
    ) -> torch.Tensor:
        """Draft states [batch, n, hidden] of rows. greens: [batch, n, hidden], the rows' green
        states. places: [batch, n] int64. The rest: see `DraftBlock`."""
        return self._outputs(greens, places, self.green_norm, columns, sees, own)

    def finished(self, states: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        drafts = super().finished(states, attended)
        return drafts if self.output_norm is None else normal(drafts, self.output_norm)
