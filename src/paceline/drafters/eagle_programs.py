"""EAGLE's rows and head as programs of the C library, and a whole draft in one call."""

from __future__ import annotations

from functools import reduce

from paceline.drafters.attention_rows import EPSILON
from paceline.drafters.called_levels import BlockPrograms
from paceline.drafters.eagle_model import EagleModel
from paceline.kernels.block_layers import BlockLinear
from paceline.kernels.native import signatures as native
from paceline.kernels.native.calls import kernels
from paceline.kernels.programs.builder import Builder, layer_of
from paceline.kernels.programs.steps import Operand
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
        super().__init__(model, model, kind)
        self._fuse = layer_of(kind, [model.fuse.weight]) if model.config.layers else None
        self._enter = layer_of(kind, [model.enter.weight])
        build, rows = self._rows(of_text=True)
        self._store(build, rows, model.row_norm)
        self.store = build.program()
        build, rows = self._rows(of_text=True)
        self.read = build.program(self._outputs(build, rows, model.row_norm))
        build, rows = self._rows(of_text=False)
        self.grow = build.program(self._outputs(build, rows, model.row_norm))
        build = Builder(self._hidden)
        ends = build.normal(build.given, model.last_norm, EPSILON)
        self.head = build.program(build.product(ends, model.shared_layer(kind)))
        one = native.Eagle(width=model.width)
        self._allow(kernels().draft_eagle, one, 0, _MOST_FRESH, LONGEST)

    def _lend(self, rows: int) -> object:
        one = self.one
        parts = [each.part(rows) for each in (self.read, self.grow, self.head)]
        one.read, one.grow, one.head = (part.native for part in parts)
        return parts

    def _rows(self, of_text: bool) -> tuple[Builder, Operand]:
        """Rows by what comes before them and their words, side by side in what is given."""
        model, hidden = self.model, self._hidden
        width, norm = (model.width, model.feature_norm) if of_text else (hidden, model.own_norm)
        build = Builder(width + hidden, self.rotary)
        before = build.part(build.given, 0, width)
        if of_text and self._fuse is not None:
            taps = [
                build.normal(build.part(build.given, place * hidden, hidden), scale, EPSILON)
                for place, scale in enumerate(model.tap_norms)
            ]
            before = build.product(reduce(build.beside, taps), self._fuse)
        words = build.normal(build.part(build.given, width, hidden), model.word_norm, EPSILON)
        both = build.beside(build.normal(before, norm, EPSILON), words)
        return build, build.product(both, self._enter)


def compile_eagle(model: EagleModel, kind: type[BlockLinear]) -> EaglePrograms | None:
    """See `HeadModule.ready`."""
    if not can_attend(model.config.attention_heads, model.config.kv_heads):
        return None
    return EaglePrograms(model, kind)
