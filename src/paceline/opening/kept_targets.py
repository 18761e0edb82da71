"""Prepared targets on disk: made once, read at the next start.

A target on the CPU whose passes are compiled is just steps and tensors. Those that it borrows from
another target, as a draft model does its base's embeddings, are not written again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from weakref import ref

from paceline.kernels.native.calls import kernels
from paceline.machine import describe_machine, describe_versions
from paceline.models.prepared_cache import bytes_of, find_prepared, keep_prepared
from paceline.targets.cache_dtypes import FLOAT32
from paceline.targets.causal_lm import CausalLMTarget
from paceline.targets.late_model import LateModel, ModelFacts
from paceline.targets.one_call.compiled_pass import compiled
from paceline.targets.one_call.recording import UnfitError
from paceline.targets.one_call.stored import Tensors, read_steps, tensors_of, written_steps
from paceline.targets.preparation import Preparation

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from paceline.kernels.programs.steps import Lowered

_BYTES, _PIECES = 4096, 256


@dataclass(frozen=True)
class KeptTarget:
    """What was kept of a target. more: as given to `keep_target`."""

    facts: ModelFacts
    preparation: Preparation
    steps: Lowered
    more: Mapping[str, Any]

    def target(
        self, open: Callable[[], PreTrainedModel], cache_dtype: str = FLOAT32
    ) -> CausalLMTarget:
        """A target that opens its model only if something besides passes needs it.

        open: opens and prepares the model. cache_dtype: of keys and values.
        """

        def open_late() -> PreTrainedModel:
            model, running = open(), owner()
            if running is not None:  # the model's weights replace those that were kept
                with suppress(UnfitError):  # as under autocast: the kept steps go on
                    running.use(compiled(model, self.facts.windows))
            return model

        late = LateModel(self.facts, open_late)
        target = CausalLMTarget.stored(late, self.steps, self.preparation, cache_dtype=cache_dtype)
        owner = ref(target)  # weakly: a cycle would keep the model until garbage is collected
        return target


def mark_of(parts: Mapping[str, Any]) -> str:
    """A mark of all that determines what is kept: `parts`, JSON values, and what runs them."""
    everything = {
        **parts,
        "versions": describe_versions(),
        "library": [kernels().sources, kernels().tier],
        "processor": describe_machine()["processor"],
    }
    return hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()[:32]


def keep_target(
    mark: str, target: CausalLMTarget, more: Mapping[str, Any], lender: CausalLMTarget | None = None
) -> None:
    """Keep a target under a mark, if its passes are compiled. more: JSON values to keep with it.
    lender: the target from which it borrows tensors, if any."""
    lent = _lent(lender)
    written = target.steps and written_steps(target.steps, target.max_context, lent)
    if not written:
        return
    steps, tensors = written
    record = {
        "facts": asdict(target.late_model.facts),
        "preparation": target.preparation.as_json(),
        "steps": steps,
        "lent": {name: _sample(each) for name, each in tensors.items() if name in lent},
        "more": more,
    }
    keep_prepared(mark, record, {n: each for n, each in tensors.items() if n not in lent})


def find_target(mark: str, lender: CausalLMTarget | None = None) -> KeptTarget | None:
    """What was kept under a mark; None if nothing was, it is damaged, or the lender differs."""
    kept = find_prepared(mark)
    if kept is None:
        return None
    record, tensors = kept
    lent = _lent(lender)
    try:
        used = record["lent"]
        if any(_sample(lent[name]) != sample for name, sample in used.items()):
            return None
        facts = ModelFacts(**record["facts"])
        preparation = Preparation.from_json(record["preparation"])
        steps = read_steps(record["steps"], {**tensors, **{name: lent[name] for name in used}})
        return KeptTarget(facts, preparation, steps, dict(record["more"]))
    except (KeyError, TypeError, ValueError, IndexError):
        return None


def _lent(lender: CausalLMTarget | None) -> Tensors:
    steps = None if lender is None else lender.steps
    return {} if steps is None else {f"lent {n}": each for n, each in enumerate(tensors_of(steps))}


def _sample(tensor: torch.Tensor) -> list[Any]:
    """Tells the tensors of one target apart, in much less time than reading them takes."""
    data = bytes_of(tensor)
    places = range(0, len(data), max(_BYTES, len(data) // _PIECES))
    pieces = b"".join(data[place : place + _BYTES] for place in places)
    return [str(tensor.dtype), [*tensor.shape], hashlib.sha256(pieces).hexdigest()]
