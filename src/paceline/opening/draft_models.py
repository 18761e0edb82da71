"""Draft models for a loaded model: opened once, shared by any number of drafters."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.drafters import Host, ModelChoice
from paceline.drafters.host import COPIES, SELF
from paceline.drafters.parts import shipped_for
from paceline.errors import ModelError, UsageError
from paceline.models import ProgressCallback, load_causal_lm
from paceline.models.fingerprint import form_of, loaded_fingerprint
from paceline.models.progress import ignore_progress
from paceline.models.vocabulary import check_same_size, shared_tokens
from paceline.opening.own_drafts import find_own_draft, open_copy, open_own_draft
from paceline.planning.curve_store import known_curve
from paceline.protocols import Target
from paceline.targets.engines import open_target
from paceline.targets.late_model import LateModel
from paceline.targets.preparation import NATIVE
from paceline.targets.prepare import AUTO, check_weights
from paceline.targets.quantised_copy import QuantisedCopy

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_Path = tuple[ModelChoice, ...]
"""A draft model, after the one that it is a copy of."""


@dataclass(eq=False, repr=False)
class DraftModels:
    """Opens draft models for one model; what `Host.open` is for drafters.

    base, fingerprint: the model; draft models that were cut out of it share its embeddings.
    tokenizer: of the model; if None, draft models are only refused for a vocabulary of another
    size.
    target: the target that runs the model; if None, one is opened when a copy is wanted.
    device, dtype: of draft models, unless a choice names others.
    measure: whether to measure a draft model's pass costs if no curve is stored; without one, its
    own drafter's first trees have the wrong size, and a slow first text may switch it off.

    Every model is loaded once and kept, and all hosts on it share one target, in which each text
    has its own slot. A draft model may be drafted for in turn; `SELF` is then a copy of that draft
    model.
    """

    base: LateModel
    fingerprint: str
    tokenizer: PreTrainedTokenizerBase | None = None
    _: KW_ONLY
    target: Target | None = None
    device: str | torch.device | None = None
    dtype: str | torch.dtype | None = None
    measure: bool = False
    progress: ProgressCallback = ignore_progress
    _opened: dict[_Path, Host] = field(default_factory=dict, init=False)
    _given: dict[PreTrainedModel, object] = field(default_factory=dict, init=False)

    def __call__(self, choice: ModelChoice, asking: _Path = ()) -> Host:
        """A host on the model that has seen no text yet.

        asking: path of the model to draft for; () for the base itself.

        Raises ModelError for a model that cannot be read or run, or has another tokenizer, and
        UsageError for an unknown device, dtype or kind of weights.
        """
        path: _Path = (choice,)
        copied = choice.model == SELF
        if copied:
            path = (*asking, replace(choice, weights=choice.weights or COPIES[0]))
        if path not in self._opened:
            self._opened[path] = self._open_copy(path) if copied else self._open(choice)
        host = self._opened[path]
        host.target.forget()
        # What is kept must not refer to what keeps it, or models outlive their session.
        return replace(host.fresh(), open=partial(self, asking=path))

    @property
    def unchanged(self) -> bool:
        """Whether models that callers had loaded are still as they were when they were opened."""
        return all(form == form_of(model) for model, form in list(self._given.items()))

    def _open_copy(self, path: _Path) -> Host:
        *origin, choice = path
        if choice.device or choice.dtype:
            raise UsageError("a copy runs where its model runs: leave out device and dtype")
        if origin:
            host = self._opened[tuple(origin)]
            target, fingerprint, tokens = host.target, host.fingerprint, host.tokens
        else:
            if self.target is None and self.base.facts.device != "cpu":  # opening takes seconds
                raise UsageError("only a model on a CPU can have a copy: name a draft model")
            target = self.target or open_target(self.base.get(), weights=NATIVE, check=False)
            fingerprint, tokens = self.fingerprint, None
        copy = open_copy(target, choice.weights, fingerprint, self.progress)
        # A target of our own has read nothing yet that could be taken over.
        takes_over = isinstance(copy, QuantisedCopy) and (bool(origin) or self.target is not None)
        return replace(self._host(copy, fingerprint, tokens), takes_over=takes_over)

    def _open(self, choice: ModelChoice) -> Host:
        if not isinstance(choice.model, str):
            if not hasattr(choice.model, "config"):
                raise UsageError(
                    "draft must be the name of a model as a string, a model of transformers or a "
                    f"Host, got {choice.model!r}"
                )
            if choice.device or choice.dtype or choice.weights:
                raise UsageError(
                    "a draft model that is already loaded stays as it is: leave out device, dtype "
                    "and weights"
                )
            tokens = self._shared(choice.model, None, "the draft model")
            target = open_target(choice.model, weights=NATIVE, exact=False)
            self._given[choice.model] = form_of(choice.model)
            return self._host(target, loaded_fingerprint(choice.model), tokens)
        weights = choice.weights or AUTO
        check_weights(weights)
        folder = self._own_draft(choice.model)
        if folder is not None:
            if choice.device or choice.dtype:
                raise UsageError(
                    f"the draft model in {folder} shares its target's embeddings and so its device "
                    "and dtype: leave out device and dtype"
                )
            target, fingerprint = open_own_draft(
                folder, self.base, self.target, self.fingerprint, weights
            )
            return self._host(target, fingerprint, self.base.facts.vocab_size)
        loaded = load_causal_lm(
            choice.model,
            device=choice.device or self.device,
            dtype=choice.dtype or self.dtype,
            blocks=weights == AUTO,
            progress=self.progress,
        )
        tokens = self._shared(loaded.model, loaded.tokenizer, choice.model)
        target = open_target(loaded.model, weights=weights, exact=False)
        return self._host(target, loaded.fingerprint, tokens)

    def _host(self, target: Target, fingerprint: str, tokens: int | None) -> Host:
        """A host whose draft model has no draft model yet."""
        curve = known_curve(target, fingerprint, self.measure, self.progress)
        return Host(target, fingerprint, curve, tokens)

    def _own_draft(self, name: str) -> Path | None:
        """See `find_own_draft`; "" names the one that comes with this package."""
        if name:
            return find_own_draft(name, self.progress)
        folder = shipped_for("draft", self.fingerprint)
        if folder is None:
            raise ModelError(
                "paceline ships no draft model for this model: name one with "
                "--draft-model NAME or draft=NAME, or make one with 'paceline train draft'"
            )
        return folder

    def _shared(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, name: str
    ) -> int:
        """The id below which all tokens mean the same text to both models."""
        if self.tokenizer is not None and tokenizer is not None:
            return shared_tokens(self.tokenizer, tokenizer, name)
        size: int = model.config.get_text_config().vocab_size
        check_same_size(self.base.facts.vocab_size, size, name)
        return min(size, self.base.facts.vocab_size)
