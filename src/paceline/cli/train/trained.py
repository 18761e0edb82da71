"""Commands for the rows of `TRAINED`; the options of each come from its method's settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from paceline.cli import common
from paceline.cli.flags import option, told
from paceline.cli.groups import Device, ModelOption
from paceline.defaults import DEFAULT_MODEL
from paceline.errors import UsageError, writable
from paceline.training.settings import HOW, PACKAGED, TrainerSettings

if TYPE_CHECKING:
    from paceline.models import LoadedModel
    from paceline.training.method import Finished
    from paceline.training.method_run import MethodRun
    from paceline.training.order import PromptFile


@dataclass(frozen=True, kw_only=True)
class _Given(Device):
    """The options that are not settings of a method."""

    data: Annotated[list[Path], told("Folder made by 'paceline train data'; may be repeated.")]
    out: Annotated[Path, told("Folder for the trained parts.")]
    model: ModelOption = DEFAULT_MODEL
    texts: list[Path] | None = option(
        None, "JSONL file of prompts to read without answers; may be repeated.", panel=HOW
    )
    licence: list[str] | None = option(
        None, "Licence of these texts: one for all files or one each.", panel=HOW
    )
    cache: Path | None = option(
        None, "Folder for the model's states; runs may share it. Default: OUT-states.", panel=HOW
    )
    cache_size: float = option(0.0, "Most gigabytes of states; 0: all free disk space.", panel=HOW)

    @property
    def states(self) -> Path:
        """Folder for the model's states."""
        # Not `with_name`, which fails for the root of a disk.
        return self.cache or Path(f"{self.out.resolve()}-states")

    @common.interruptible()
    def opened(self, blocks: bool = False) -> LoadedModel:
        """The model as it is, loaded with progress bars. blocks: see `load_causal_lm`."""
        if self.threads is not None:
            import torch

            torch.set_num_threads(self.threads)
        from paceline.models import RichProgress, load_causal_lm

        with RichProgress(self.model) as progress:
            return load_causal_lm(
                self.model, device=self.device, dtype=self.dtype, blocks=blocks, progress=progress
            )


def command_of(kind: type[TrainerSettings]) -> Callable[..., None]:
    """The command that trains a method."""

    def train(*, settings: Any, given: _Given) -> None:
        _train(settings, given)

    train.__annotations__["settings"] = kind
    train.__doc__ = (
        f"{kind.summary}\n\n    The model itself does not change. If the command is killed, repeat "
        "it to continue from the latest checkpoint. Use the folder with 'paceline generate "
        f"--method {kind.used('FOLDER')}'.\n    "
    )
    return train


def _train(settings: TrainerSettings, given: _Given) -> None:
    """Read and train with progress bars; Ctrl-C says how to continue. Nothing here keeps a model, so
    that the one that reads is gone when the other is loaded."""
    files, out = _checked(settings, given), given.out
    with writable(out):
        out.mkdir(parents=True, exist_ok=True)
    # The model that reads may keep the blocks of its file; the one learned through may not.
    waiting = [given.opened(blocks=True)]
    run = _run(settings, waiting[0], given, files)
    from paceline.training.method_run import train_method

    hint = f"{out} keeps the latest checkpoint; repeat the command to continue"
    with common.progress("{task.description}") as bars, common.on_interrupt(hint):
        reading = bars.add_task("tokens read", total=None, visible=False)
        steps = bars.add_task("steps", total=settings.steps)

        def show_read(done: int, total: int) -> None:
            bars.update(reading, completed=done, total=total, visible=True)

        def show(step: int, loss: float) -> None:
            bars.update(steps, completed=step, description=f"steps, loss {loss:.3f}")

        heard = show, show_read, common.note
        parts = train_method(
            lambda: waiting.pop()[:2], lambda: given.opened()[:2], run, out, *heard
        )
    _report(parts, settings, out)


@common.interruptible()
def _checked(settings: TrainerSettings, given: _Given) -> list[PromptFile]:
    """The files of --texts; raises UsageError for what could be reported only after a model is
    loaded."""
    from paceline.training.data import TrainingData
    from paceline.training.order import read_prompt_files

    if settings.start and settings.start != PACKAGED:
        from paceline.training.method import parts_in

        parts_in(Path(settings.start), settings)
    if given.licence and not given.texts:
        raise UsageError("--licence applies to the files of --texts: name some with --texts")
    if not 0 <= given.cache_size < inf:
        raise UsageError(f"the size of a cache must be a number >= 0, got {given.cache_size}")
    if given.cache and given.cache.resolve() == given.out.resolve():
        raise UsageError(f"--cache and --out are both {given.out}: name two folders")
    for folder in given.data:
        TrainingData(folder)  # which is asked again once it is known which model must have made it
    return read_prompt_files(given.texts, given.licence or []) if given.texts else []


@common.interruptible()
def _run(
    settings: TrainerSettings, loaded: LoadedModel, given: _Given, files: list[PromptFile]
) -> MethodRun:
    from paceline.drafters.trained_parts import BaseModel
    from paceline.machine import describe_run
    from paceline.training.data import TrainingData
    from paceline.training.dataset import TextSource
    from paceline.training.method_run import MethodRun

    answers = [TrainingData(folder, loaded.fingerprint) for folder in given.data]
    sizes = loaded.model.config.get_text_config()
    base = BaseModel(loaded.fingerprint, given.model, sizes.hidden_size, sizes.vocab_size)
    source = TextSource(answers, files)
    most = int(given.cache_size * 1e9)
    about = describe_run(loaded.model.device)
    return MethodRun(settings, base, source, given.states, most, about)


def _report(parts: Finished, settings: TrainerSettings, out: Path) -> None:
    """Print what was trained on standard error."""
    record: Any = parts.record
    found = record["evaluation"]
    for head in range(settings.heads):
        shares = ", ".join(f"top-{rank} {found[f'top{rank}'][head]:.1%}" for rank in range(1, 6))
        low, high = found["top1_interval"][head]
        sure = f"; 95 % of top-1 {low:.1%} to {high:.1%}" if found["texts"] > 1 else ""
        common.note(f"head {head}: {shares}{sure}")
    size = sum(tensor.nbytes for tensor in parts.tensors.values())
    common.note(
        f"{out} holds {size / 1e3:,.0f} kB after "
        f"{record['places']} places in {record['seconds'] / 60:.1f} minutes, "
        f"{record['speed']['places_per_second']:.0f} a second; use them with "
        f"--method {settings.used(str(out))}"
    )
