"""EAGLE's rows and head as programs of the C library, and a whole draft in one call."""

from __future__ import annotations

from paceline.drafters.attention_rows import normal
from paceline.drafters.called_levels import BlockPrograms
from paceline.drafters.eagle_model import EagleModel
from paceline.kernels.block_layers import BlockLinear
from paceline.kernels.native import signatures as native
from paceline.kernels.native.calls import kernels
from paceline.kernels.programs.builder import Builder, layers_of
from paceline.kernels.slots_seen import can_attend
from paceline.planning.draft_length import LONGEST

AT_ONCE = 512
"""Most rows per call; memory for them is kept."""
_MOST_FRESH = 16
"""Most rows of the text in the call of a draft; a prompt is read in calls of its own."""


class EaglePrograms(BlockPrograms):
    """The parts of `model` as programs, see `BlockPrograms`.

    read: features and the embeddings after them side by side -> outputs, and columns in the cache.
    store: the columns alone. grow: as `read` for guesses, with the outputs of the rows before
    instead of features. head: outputs -> logits. `call` has them all but `store`.
    """

    model: EagleModel

    def __init__(self, model: EagleModel, kind: type[BlockLinear]) -> None:
        super().__init__(model, model)
        layer, sizes = layers_of(kind), (model.width, model.hidden_size)
        build = Builder(sum(sizes), layer, self.rotary)
        rows = model.rows_of_text(*build.given.split(sizes))
        self._store(normal(rows, model.row_norm))
        self.store = build.program()
        build = Builder(sum(sizes), layer, self.rotary)
        rows = model.rows_of_text(*build.given.split(sizes))
        self.read = build.program(self._outputs(rows, model.row_norm))
        build = Builder(2 * model.hidden_size, layer, self.rotary)
        rows = model.rows_of_guesses(*build.given.split(2 * [model.hidden_size]))
        self.grow = build.program(self._outputs(rows, model.row_norm))
        build = Builder(model.hidden_size, layer)
        self.head = build.program(model.logits(build.given))
        one = native.Eagle(width=model.width)
        self._allow(kernels().draft_eagle, one, 0, _MOST_FRESH, LONGEST)

    def _lend(self, rows: int) -> object:
        one = self.one
        parts = [each.part(rows) for each in (self.read, self.grow, self.head)]
        one.read, one.grow, one.head = (part.native for part in parts)
        return parts


def compile_eagle(model: EagleModel, kind: type[BlockLinear]) -> EaglePrograms | None:
    """See `HeadModule.ready`."""
    if not can_attend(model.config.attention_heads, model.config.kv_heads):
        return None
    return EaglePrograms(model, kind)
