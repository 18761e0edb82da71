"""Training any method of `TRAINED`: from a target and its texts to a folder of parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from paceline.drafters.eight_bits import in_eight_bits, in_floats
from paceline.drafters.trained_parts import BaseModel
from paceline.errors import UsageError
from paceline.models.vocabulary import stop_ids
from paceline.targets.prepare import arithmetic_of
from paceline.targets.support import check_supported, longest_context
from paceline.targets.words import output_head
from paceline.training.batches import Batches
from paceline.training.checkpoint import forget_checkpoint, load_checkpoint
from paceline.training.dataset import Dataset, Text, TextSource
from paceline.training.folder import check_same_run, held
from paceline.training.frequent import frequent_tokens
from paceline.training.method import Base, Finished, first_parts, method_of
from paceline.training.precision import products_in, products_name, usable_precision, without_cudnn
from paceline.training.reading import TargetReader
from paceline.training.settings import TrainerSettings
from paceline.training.state_cache import StateCache, StateShape
from paceline.training.trainer import OnStep, Trainer, run_training

_VALIDATION_PLACES = 20_000  # that suffice for a look at the loss

_FULL = torch.OutOfMemoryError, MemoryError

OpenModel = Callable[[], tuple[PreTrainedModel, PreTrainedTokenizerBase | None]]
"""Loads the target and its tokenizer."""


@dataclass(frozen=True)
class MethodRun:
    """What is trained, on what.

    settings: of a class in `TRAINED`. base: the target. source: of the texts. cache: folder of its
    states; cache_bytes: its limit, 0 for what the disk has. about: command, machine and versions,
    for readers.
    """

    settings: TrainerSettings
    base: BaseModel
    source: TextSource
    cache: Path
    cache_bytes: int = 0
    about: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def first(self) -> Finished | None:
        """The parts that it starts from, see `first_parts`."""
        return first_parts(self.settings, self.base.fingerprint)

    def as_json(self, dtype: torch.dtype) -> dict[str, Any]:
        """What the result depends on, besides machine and versions; the parts it starts from by
        fingerprint instead of folder."""
        start = "" if self.first is None else self.first.fingerprint()
        return {
            "method": self.settings.name,
            "base": asdict(self.base),
            "dtype": str(dtype).removeprefix("torch."),
            "settings": {**self.settings.as_json(), "start": start},
            "data": self.source.as_json(),
        }

    def check(self, model: PreTrainedModel) -> None:
        """Raise UsageError or ModelError for what would fail, or have no effect, after texts have
        been read."""
        settings = self.settings
        usable_precision(settings.precision, model.device)
        method_of(settings).check(settings, model, self.first)
        if settings.vocabulary > self.base.vocab_size:
            raise UsageError(
                f"the model has {self.base.vocab_size} tokens: a vocabulary of "
                f"{settings.vocabulary} cannot be made"
            )
        if self.source.files and not settings.read_rows:
            raise UsageError(
                f"of {settings.rows} windows a batch, a share of {settings.read_share} for texts "
                "that are only read is none: increase --rows or --read-share, or leave out --texts"
            )

    def shape(self, model: PreTrainedModel) -> StateShape:
        """The states of the target that the method reads."""
        taps = self.settings.taps(model.config.get_text_config().num_hidden_layers)
        half = "bfloat16" if model.dtype == torch.bfloat16 else "float16"
        base = self.base
        return StateShape(base.fingerprint, base.hidden_size, taps, half, arithmetic_of(model))


def train_method(
    open_reader: OpenModel,
    open_model: OpenModel,
    run: MethodRun,
    folder: Path,
    on_step: OnStep = lambda step, loss: None,
    on_read: Callable[[int, int], None] = lambda done, total: None,
    on_note: Callable[[str], None] = lambda text: None,
) -> Finished:
    """Read the texts, train, measure on the test split, and save the parts in `folder`.

    open_reader: loads the model that reads, which is changed; its weights may be in blocks.
    open_model: loads one that can be differentiated through. folder: new, or with a checkpoint of
    the same run, which is resumed, or with its result, which is returned. on_step: see
    `run_training`. on_read: called with the tokens that the target has read, and all. on_note:
    called with what a user should know of the texts.

    Raises UsageError for data, states, a checkpoint, a vocabulary or parts to start from that are
    damaged or do not fit, a folder that holds another run, cannot be written or is in use by
    another process, and memory that is full; ModelError for a model that could not be
    decoded with, and parts to start from that are damaged or another's.
    """
    model, tokenizer = open_reader()
    check_supported(model)
    if model.dtype == torch.float16:
        raise UsageError("gradients vanish in float16: train in bfloat16 or float32")
    wanted = run.as_json(model.dtype)  # refuses parts that it cannot start from
    if (done := _finished(run, folder, wanted)) is not None:
        return done
    load_checkpoint(folder, wanted)  # another's is refused before texts are read
    run.check(model)
    sizes = model.config.get_text_config()
    dataset = Dataset.of(run.source, run.settings, tokenizer, longest_context(sizes))
    _check_tokens(dataset, sizes.vocab_size)
    if dataset.left_out:
        on_note(dataset.left_out)
    cache = StateCache(run.cache, run.shape(model), run.cache_bytes)
    on_cpu = model.device.type == "cpu"
    advice = "use a smaller model" if on_cpu else "use --device cpu, or a smaller model"
    with without_cudnn(model.device), _enough_memory("read the texts", advice):
        cache.fill(dataset, partial(TargetReader, model), on_read)
    del model  # before there are two
    model, tokenizer = open_model()
    model.eval().requires_grad_(False)
    with _enough_memory("learn", advice):
        trainer, device = _begun(run, model, tokenizer, dataset), model.device
    batches = Batches(dataset, cache, run.settings, device)
    with held(folder), products_in(trainer.precision, device), without_cudnn(device):
        if (done := _finished(run, folder, wanted)) is not None:  # by another process meanwhile
            return done
        with _enough_memory("learn", "train with fewer --rows, in another folder"):
            parts = _trained(trainer, batches, run, folder, wanted, on_step)
        parts.save_pretrained(folder)
        forget_checkpoint(folder)
    return parts


def _check_tokens(dataset: Dataset, size: int) -> None:
    """Raise UsageError for a text that holds tokens which the model does not have: answers cannot,
    but a tokenizer may have been given more."""
    for text in dataset.reads:
        if (most := max(text.tokens)) >= size:
            raise UsageError(
                f"the text {text.id} holds token {most} but the model's vocabulary ends at {size}: "
                "leave it out of --texts"
            )


@contextmanager
def _enough_memory(what: str, advice: str) -> Iterator[None]:
    """Raise UsageError, with what could not be done and what to do, if memory is full."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        # On a CPU torch says so in words alone.
        if not isinstance(error, _FULL) and "can't allocate memory" not in str(error):
            raise
        raise UsageError(f"there is not enough memory to {what}: {advice}") from error


def _finished(run: MethodRun, folder: Path, wanted: Mapping[str, Any]) -> Finished | None:
    """The result of this run, if the folder holds it; raises UsageError for another's."""
    done = method_of(run.settings).Parts.found_in(folder)
    if done is not None:
        check_same_run(folder, done.record.get("run", {}), wanted, f"{done.kind} trained")
    return done


def _begun(
    run: MethodRun,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    dataset: Dataset,
) -> Trainer:
    """Of a run whose texts have been read: with its first parts, or new ones."""
    settings, ids = run.settings, _vocabulary(dataset, run, stop_ids(model, tokenizer))
    weight, bias = output_head(model, ids)
    # Inference tensors cannot be differentiated through; clones can.
    head = weight.clone(), bias.clone()
    base = Base(model, run.base, ids, head, dataset.train, tokenizer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        method = method_of(settings)(base, settings)
    if run.first is not None:
        method.start_from(run.first)
    return Trainer(method, usable_precision(settings.precision, model.device))


def _trained(
    trainer: Trainer,
    batches: Batches,
    run: MethodRun,
    folder: Path,
    wanted: Mapping[str, Any],
    on_step: OnStep,
) -> Finished:
    """Train, round the parts, and measure them as saved."""
    method, data = trainer.method, batches.dataset
    judged = _some_places(data.validation, _VALIDATION_PLACES)
    outcome = run_training(trainer, batches, judged, folder, wanted, on_step)
    kept = _rounded(method.tensors(), run.settings.save_dtype)
    method.load(in_floats(kept))
    tallies = trainer.test(batches, data.test)
    record = {
        "about": run.about,
        "run": dict(wanted),
        "texts": data.counts,
        **outcome,
        **{name: {"on": "the test split", **tally.as_json()} for name, tally in tallies.items()},
        "licences": run.source.licences,
        **_origin(run.first),
        "precision": products_name(trainer.precision, batches.device),
    }
    return method.parts(kept, tallies["evaluation"].table, record)


def _origin(first: Finished | None) -> dict[str, Any]:
    """What the parts it starts from learned from: their licences bind its own."""
    if first is None:
        return {}
    about = first.record
    kept = {name: about[name] for name in ("licences", "started_from") if name in about}
    return {"started_from": {**kept, "data": about.get("run", {}).get("data")}}


def _vocabulary(dataset: Dataset, run: MethodRun, ends: list[int]) -> torch.Tensor | None:
    """Tokens that can be guessed, see `Base`: those of the first parts, or the most frequent and
    `ends`, which end a text."""
    count = run.settings.vocabulary
    known = None if run.first is None else run.first.token_ids
    if known is not None or not count:
        return known
    # Texts that are only read count as prompts.
    reads = (replace(text, first=len(text.tokens) - 1) for text in dataset.reads)
    return frequent_tokens([*dataset.train, *reads], count, run.base.vocab_size, ends)


def _some_places(texts: list[Text], most: int) -> list[Text]:
    """Texts from everywhere in the data that together have `most` places."""
    found, places = [], 0
    for text in sorted(texts, key=lambda text: text.digest):
        if places >= most:
            break
        found.append(text)
        places += len(text.places)
    return found


def _rounded(tensors: Mapping[str, torch.Tensor], saved: str) -> dict[str, torch.Tensor]:
    if saved == "int8":
        return in_eight_bits(_rounded(tensors, "float16"))
    kept = {name: part.to(getattr(torch, saved)) for name, part in tensors.items()}
    if saved == "float16" and not all(bool(part.isfinite().all()) for part in kept.values()):
        return {name: part.to(torch.bfloat16) for name, part in tensors.items()}
    return kept
