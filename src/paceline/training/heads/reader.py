"""The frozen model's last states on whole texts, read once and kept on the disk where asked for.

A pass of the model costs several times what heads need to learn from it, and a text is learned from
in every epoch. Each text is read alone and its states are rounded to half precision, kept or not: so
they are the same whatever else is read, and a cache changes nothing but the time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn
from transformers import PreTrainedModel

from paceline.drafters.trained_parts import BaseModel
from paceline.errors import ModelError, UsageError
from paceline.training.folder import check_same_run
from paceline.training.shard import write_file

__all__ = ["StateReader"]

_INDEX = "cache.json"
_NAME = "states"


class StateReader:
    """Reads texts with `model`, which is frozen.

    base: whose states they are. cache: a folder that keeps them, a file per text; any number of
    trainings may share it. None: they are computed whenever they are asked for.

    Raises UsageError for a folder with states of another model or precision, or that cannot be
    written.
    """

    def __init__(self, model: PreTrainedModel, base: BaseModel, cache: Path | None = None) -> None:
        self.model = model.eval().requires_grad_(False)
        self.device = model.get_input_embeddings().weight.device
        # A model in bfloat16 may have states that are too large for float16.
        self.dtype = torch.bfloat16 if model.dtype == torch.bfloat16 else torch.float16
        self._cache = cache
        if cache is not None:
            _claim(cache, {"base": base.fingerprint, "dtype": str(model.dtype)})

    def read(self, text: Sequence[int]) -> torch.Tensor:
        """[tokens, hidden] in half precision: what the model's output head reads behind each token.

        Raises ModelError where that does not fit into half precision, UsageError where it cannot be
        kept.
        """
        if self._cache is None:
            return self._ask(text)
        digest = hashlib.blake2b(json.dumps(list(text)).encode(), digest_size=16).hexdigest()
        path = self._cache / f"{_NAME}-{digest}.safetensors"
        found = _load(path)
        if found is None:
            found = self._ask(text).cpu()
            write_file(path, save({_NAME: found}, metadata={"sha256": _hash(found)}))
        return found.to(self.device)

    def batch(self, texts: Sequence[Sequence[int]]) -> torch.Tensor:
        """[batch, longest, hidden] float32 on the model's device, zeros behind shorter texts."""
        return torch.nn.utils.rnn.pad_sequence(
            [self.read(text).float() for text in texts], batch_first=True
        )

    @torch.no_grad()
    def scores(self, states: torch.Tensor, token_ids: torch.Tensor | None = None) -> torch.Tensor:
        """What the model's output head makes of states [n, hidden]: logits [n, columns] float32 of
        these tokens int64 [columns], or of all."""
        head: nn.Module = self.model.get_output_embeddings()
        logits: torch.Tensor = head(states.to(self.model.dtype)).float()
        return logits if token_ids is None else logits[:, token_ids]

    @torch.no_grad()
    def _ask(self, text: Sequence[int]) -> torch.Tensor:
        ids = torch.tensor([list(text)], device=self.device)
        outputs = self.model.get_decoder()(ids, use_cache=False)
        states: torch.Tensor = outputs.last_hidden_state[0].to(self.dtype).contiguous()
        if not bool(states.isfinite().all()):
            raise ModelError(
                f"the states of {type(self.model).__name__} are too large for half precision: load "
                "it with --dtype bfloat16"
            )
        return states


def _claim(folder: Path, run: dict[str, str]) -> None:
    """Note whose states a folder keeps, or check it."""
    path = folder / _INDEX
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = json.loads(path.read_text(encoding="utf-8"))["run"] if path.exists() else None
    except OSError as error:
        raise UsageError(f"cannot use the cache {folder}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is damaged: delete the folder, it is only a cache") from error
    if found is None:
        record = {"format": 1, "kind": "hidden states", "run": run}
        write_file(path, (json.dumps(record, indent=2) + "\n").encode())
    else:
        check_same_run(folder, found, run, "hidden states")


def _hash(states: torch.Tensor) -> str:
    return hashlib.sha256(states.view(torch.uint8).numpy().tobytes()).hexdigest()


def _load(path: Path) -> torch.Tensor | None:
    """What was kept, None where it was not or is damaged: it is only read again."""
    try:
        with safe_open(path, framework="pt") as file:
            states: torch.Tensor = file.get_tensor(_NAME)
            return states if file.metadata()["sha256"] == _hash(states) else None
    except (OSError, SafetensorError, KeyError, TypeError):
        return None
