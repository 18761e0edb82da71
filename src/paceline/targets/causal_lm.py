"""Any decoder-only causal language model of transformers as a target.

The model's own `forward` runs, with paceline's cache, explicit positions and a 4-D float mask, so
no architecture is re-implemented, and `device_map`, quantised weights and tensor parallelism keep
working. If the forward can be recorded, a pass is one call on a CPU and few operators on a GPU, see
`one_call`; later changes to the model's weights or hooks are then not seen, or only in part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Self

import torch

from paceline.chains import ChainFound, ChainRequest
from paceline.errors import UsageError
from paceline.kernels.programs.steps import Lowered
from paceline.protocols import CAPABILITIES, CHAINS, LAST_STATES, Target
from paceline.records import Path, TargetInfo, WordTable
from paceline.scores import TokenScores
from paceline.targets.cache_dtypes import FLOAT32
from paceline.targets.hidden_states import side_by_side
from paceline.targets.late_model import LateModel
from paceline.targets.model_pass import ModelPass
from paceline.targets.preparation import Preparation
from paceline.targets.support import check_supported
from paceline.targets.text_passes import StaticPasses, play
from paceline.targets.text_slots import KEPT_BYTES, TextSlot, TextSlots
from paceline.targets.virtual_tokens import VirtualTokens
from paceline.targets.weights import on_one_gpu
from paceline.targets.words import Words
from paceline.tree import Tree

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PREFILL_CHUNK = 1024

# Slots reserved up front for passes of static shape: captures are lost when the cache moves.
STATIC_ROOM = 2048

# The same on a CPU, where unwritten slots take no memory. Moving the pool is slower than many passes.
_LAZY_ROOM = 16384


class CausalLMTarget(Target):
    """Drives `model` through the `Target` contract.

    model: a decoder-only causal LM in evaluation mode, on any device or devices.
    preparation: what `prepare` did to the model, for reports.
    check: first compare a tree pass with the model's plain forward (some tens of milliseconds
    for a small model).
    static: run passes that recur in few shapes on inputs at fixed addresses, captured as CUDA
    graphs on a CUDA device; None does so if the whole model is on one CUDA device.
    compiled: run each pass in one call, or on a GPU as few operators, if the model can be recorded.
    cache_dtype: of keys and values, one of `CACHE_DTYPES`.

    Raises ModelError, naming the reason, if the model cannot be driven this way, UsageError
    if its cache cannot have that dtype.
    """

    capabilities: frozenset[str] = CAPABILITIES - {CHAINS}

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        preparation: Preparation | None = None,
        check: bool = True,
        static: bool | None = None,
        compiled: bool = True,
        cache_dtype: str = FLOAT32,
    ) -> None:
        check_supported(model)
        self.static = on_one_gpu(model) if static is None else static
        self._begin(LateModel.opened(model), preparation or Preparation())
        if compiled:
            self._pass.compile()
        if check:
            try:
                self._pass.check(self, model)
            finally:
                self._forget_all()
        self._pass.hold_in(cache_dtype)  # after the check: rounding is no error
        self._note_chains()

    @classmethod
    def stored(
        cls,
        model: LateModel,
        steps: Lowered,
        preparation: Preparation,
        *,
        cache_dtype: str = FLOAT32,
    ) -> Self:
        """Make a target on the CPU whose passes were compiled and checked in another process.

        model: opened, and prepared, only if more than passes is asked for. steps: the compiled
        passes.
        """
        target = cls.__new__(cls)
        target.static = False
        target._begin(model, preparation)
        target.use(steps)
        target._pass.hold_in(cache_dtype)
        return target

    def _begin(self, model: LateModel, preparation: Preparation) -> None:
        """Set up all but the way passes run."""
        self.late_model, self.preparation = model, preparation
        self.vocab_size: int = model.facts.vocab_size
        self.max_context = model.facts.max_context
        self._words = Words(model)
        self._virtual = VirtualTokens(self._words.embed, self.vocab_size)
        self._pass = ModelPass(model, self._virtual)
        self._pass.by_text &= not self.static
        self._begin_texts()

    @property
    def model(self) -> PreTrainedModel:
        """The model itself."""
        return self.late_model.get()

    @property
    def steps(self) -> Lowered | None:
        """The compiled passes; None if the model's own forward runs."""
        compiled = self._pass.compiled
        return None if compiled is None else compiled.steps

    @property
    def runs_as_opened(self) -> bool:
        """Whether no check has changed how passes run."""
        return self._pass.as_opened

    def use(self, steps: Lowered) -> None:
        """Run passes by these steps from now on."""
        self._pass.use(steps)
        self._words.use(steps)
        self._note_chains()

    def _note_chains(self) -> None:
        if self._pass.compiled is not None:
            self.capabilities = self.capabilities | {CHAINS}

    def describe(self) -> TargetInfo:
        """See `Target.describe`. In the report, "graphs" describes static shapes, see
        `StaticPasses.as_json`; "own_forward" is why passes are not compiled, "" if they are;
        "cache" describes the cache, see `TextSlots.as_json`."""
        facts, done = self.late_model.facts, self.preparation
        report = {
            "preparation": done.as_json(),
            "graphs": {"static": self.static, **(self._static.as_json() if self._static else {})},
            "own_forward": self._pass.own_forward,
            "cache": {"dtype": self._pass.cache_dtype, **self._texts.as_json()},
        }
        dtype, size = done.halves or facts.dtype, facts.weight_bytes
        return TargetInfo(facts.name, str(self.device), dtype, done.weights, size, report)

    @property
    def device(self) -> torch.device:
        """See `ModelPass.device`."""
        return self._pass.device

    def add_virtual_tokens(self, embeddings: torch.Tensor) -> int:
        if not self._pass.reads_embeddings:
            raise UsageError(
                "the model's layers look tokens up, too, so it cannot read prompt tokens: choose "
                "another method"
            )
        known, first = len(self._virtual), self._virtual.add(embeddings, self.device)
        if len(self._virtual) != known:
            self._renew_static()  # captures read the old table
        return first

    def keep_states(self, layers: Sequence[int] = (LAST_STATES,)) -> None:
        kept = tuple(sorted({*self._pass.kept, *layers}))
        if kept != self._pass.kept:
            self._pass.keep_outputs(kept)
            self._forget_all()

    def states(self, slot: int, layers: Sequence[int] = (LAST_STATES,)) -> torch.Tensor:
        places = [self._pass.kept.index(each) for each in layers]
        return side_by_side(self._texts.states(slot), self.late_model.facts.hidden_size, places)

    @torch.inference_mode()
    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self._words.embed(tokens.to(self.device))

    def word_table(self) -> WordTable | None:
        return self._words.table()

    def output_head(self, tokens: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        return self._words.head(tokens)

    def open(self, context: Sequence[int]) -> int:
        """See `Target.open`. Nothing is read yet."""
        return self._texts.open(context)

    def close(self, slot: int) -> None:
        self._texts.close(slot)

    def forget(self) -> None:
        self._texts.forget()

    def pending(self, slot: int) -> int:
        return max(0, len(self._texts[slot].pending) - 1)

    def score(
        self, trees: Mapping[int, Tree], prefill: Mapping[int, int] | None = None
    ) -> dict[int, torch.Tensor]:
        """Logits [len(tree) + 1, vocab_size] per tree. See `Target.score`.

        Prompts longer than `PREFILL_CHUNK` are read in chunks first.
        """
        self._virtual.check(max((max(t.as_read, default=0) for t in trees.values()), default=0))
        for slot in trees:
            while self.pending(slot) >= PREFILL_CHUNK:
                self._play({}, {slot: PREFILL_CHUNK})
        pieces = {slot: min(most, self.pending(slot)) for slot, most in (prefill or {}).items()}
        pieces = {slot: piece for slot, piece in pieces.items() if piece > 0}
        return self._play(trees, pieces) if trees or pieces else {}

    def _play(
        self, trees: Mapping[int, Tree], pieces: Mapping[int, int]
    ) -> dict[int, torch.Tensor]:
        of_pass = self._pass, self._static, self._texts, trees, pieces
        if self._pass.compiled is not None and self._static is None:  # then torch computes nothing
            return play(*of_pass)
        with torch.inference_mode():
            return play(*of_pass)

    def commit(self, paths: Mapping[int, Path]) -> None:
        self._texts.commit(paths)

    def follow(self, slot: int, kept: int, tokens: Sequence[int]) -> TokenScores:
        text = self._followed(slot, kept, tokens)
        scores = self._pass.chain().run(text)
        text.have_read(len(text.pending))
        return scores

    def generate_chain(
        self, slot: int, kept: int, tokens: Sequence[int], wanted: ChainRequest
    ) -> ChainFound:
        """See `Target.generate_chain`; all passes in one call."""
        text = self._followed(slot, kept, tokens, wanted.passes - 1)
        found = self._pass.chain().run_on(text, wanted)
        text.pending += [ranked[0][0] for ranked in found.ranked[:-1]]
        text.have_read(len(text.pending))
        return found

    def _followed(self, slot: int, kept: int, tokens: Sequence[int], more: int = 0) -> TextSlot:
        """Rewind a text, read all but a chunk, and make room for the rest and `more`."""
        text = self._texts.rewind(slot, kept, tokens)
        while len(text.pending) > PREFILL_CHUNK:
            self.score({}, {slot: PREFILL_CHUNK})
        rows = len(text.pending) + more
        if len(text.cached) + rows > text.capacity:
            self._texts.make_room({slot: rows})
        return text

    def release(self) -> None:
        """Free the cache and compiled passes; only embeddings and output head are left."""
        self._forget_all()
        self._pass.compiled = self._pass.on_device = None

    def _forget_all(self) -> None:
        """Empty the cache; open texts have to be read again."""
        before = self._texts
        self._begin_texts()
        self._texts.take_over(before)

    def _begin_texts(self) -> None:
        facts = self.late_model.facts
        hidden = facts.hidden_size * len(self._pass.kept)
        room = STATIC_ROOM if self.static else _LAZY_ROOM * (facts.device == "cpu")
        self._texts = TextSlots(facts.layers, hidden, facts.grain, KEPT_BYTES, room)
        self._pass.cache = self._texts.cache
        self._renew_static()

    def _renew_static(self) -> None:
        """Discard all captures: the cache or the table of tokens was replaced."""
        self._static = StaticPasses(self._pass) if self.static else None
