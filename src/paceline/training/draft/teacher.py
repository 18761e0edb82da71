"""What the target says behind every beginning of a text, computed once and kept on the disk.

A pass of the target costs several times what a draft model needs to learn from it, and a text is
learned from in every epoch. Of a distribution over the vocabulary a few tokens matter, so it is
kept as these and the mass of the rest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from transformers import PreTrainedModel

from paceline.training.examples import Example
from paceline.training.shard import write_file

__all__ = ["Reading", "Teacher"]

_DIGEST = 16
_PREFIX = "teacher-"


@dataclass(frozen=True)
class Reading:
    """What the target says at some places of a text, one behind the other.

    tokens: [places, top] int32, the likeliest tokens that the draft can say, as places among them.
    log_chances: [places, top] float32, of these.
    log_kept: [places] float32, of all that the draft can say together.
    greedy: [places] int32, the likeliest token of all.
    """

    tokens: torch.Tensor
    log_chances: torch.Tensor
    log_kept: torch.Tensor
    greedy: torch.Tensor

    def __len__(self) -> int:
        return len(self.greedy)


class Teacher:
    """Reads texts with `model`, each once.

    vocabulary: ids [count] of the tokens that the draft can say; None for all.
    top: how many are kept one by one.
    prompts: whether places in a prompt are read, too.
    folder: for what was read, a file for each text until `forget`.
    mark: what else the readings depend on, JSON values: model and precision.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        vocabulary: torch.Tensor | None,
        top: int,
        prompts: bool,
        folder: Path,
        mark: Mapping[str, Any],
    ) -> None:
        self._model = model
        self.device = model.get_input_embeddings().weight.device
        self._vocabulary = None if vocabulary is None else vocabulary.to(self.device)
        size = model.config.vocab_size if vocabulary is None else len(vocabulary)
        self._top = min(top, size)
        self._prompts = prompts
        self._folder = folder
        said = None if vocabulary is None else vocabulary.tolist()
        self._mark = json.dumps([dict(mark), self._top, said])

    def first(self, text: Example) -> int:
        """The first place that is read: its row says what the token behind it is."""
        return 0 if self._prompts else text.first

    def read(self, text: Example) -> Reading:
        """From the first place to the last but one token, whatever is read with it."""
        name = f"{self._mark} {self.first(text)} {text.tokens}"
        digest = hashlib.blake2b(name.encode(), digest_size=_DIGEST).hexdigest()
        path = self._folder / f"{_PREFIX}{digest}"
        found = _load(path)
        if found is None:
            found = self._ask(text)
            write_file(path, _packed(found))
        return found

    def forget(self) -> None:
        """Remove what was kept."""
        for path in self._folder.glob(f"{_PREFIX}*"):
            path.unlink(missing_ok=True)

    @torch.no_grad()
    def _ask(self, text: Example) -> Reading:
        """One pass over one text, so that nothing depends on what else is learned from."""
        places = torch.arange(self.first(text), len(text.tokens) - 1, device=self.device)
        ids = torch.tensor([text.tokens], device=self.device)
        logits = self._model(ids, use_cache=False, logits_to_keep=places).logits[0].float()
        greedy = logits.argmax(dim=-1)
        chances = logits.log_softmax(dim=-1)
        if self._vocabulary is not None:
            chances = chances[:, self._vocabulary]
        likeliest = chances.topk(self._top, dim=-1)
        return Reading(
            likeliest.indices.to("cpu", torch.int32),
            likeliest.values.cpu(),
            chances.logsumexp(dim=-1).cpu(),
            greedy.to("cpu", torch.int32),
        )


def _packed(reading: Reading) -> bytes:
    content = save({name: tensor.contiguous() for name, tensor in vars(reading).items()})
    return hashlib.blake2b(content, digest_size=_DIGEST).digest() + content


def _load(path: Path) -> Reading | None:
    """What was kept, None where it was not or is damaged: it is only made again."""
    try:
        written = path.read_bytes()
        if hashlib.blake2b(written[_DIGEST:], digest_size=_DIGEST).digest() != written[:_DIGEST]:
            return None
        tensors = load(written[_DIGEST:])
        return Reading(**{field.name: tensors[field.name] for field in fields(Reading)})
    except (OSError, SafetensorError, KeyError):
        return None
