"""Settings that all trained methods share; their fields become command-line options."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from inspect import signature
from math import cos, inf, pi
from typing import Any, ClassVar, Literal, TypeVar

from paceline.errors import ModelError, UsageError
from paceline.trained_configs import check_choices

WHAT, HOW = "What is trained", "How"
"""Panels of options in a command's help."""

PACKAGED = "packaged"
"""What `start` names instead of a folder for the parts that come with paceline."""

SoftLoss = Literal["blend", "kl", "labels"]
"""kl: the divergence from the target's distribution. blend: that plus the total variation distance,
which gains weight as guesses are accepted (arXiv 2602.23881). labels: the cross-entropy of the
target's likeliest token."""

Block = Literal["random", "last-layer"]
"""How a transformer block starts: at random, or as the model's last layer."""

Precision = Literal["auto", "float32", "bfloat16"]
SavedFloats = Literal["float16", "bfloat16", "float32"]
Saved = Literal[SavedFloats, "int8"]
Schedule = Literal["constant", "cosine"]

_MOST_SEED = 2**64 - 1  # of torch's generator

T = TypeVar("T")


def option(default: T, help_text: str, panel: str | None = HOW, *flags: str, **limits: int) -> T:
    """Make a field of settings, with its help text and panel on the command line, where a switch
    has either form: --name and --no-name. flags: by default one made from the field's name. limits:
    min and max."""
    told = {"help": help_text, "panel": panel, "either": True, "flags": flags, "limits": limits}
    made: T = field(default=default, metadata=told)
    return made


@dataclass(frozen=True)
class TrainerSettings:
    """How something is trained; those of a method add what is trained.

    A place is a position of a text after which a drafter guesses. A step learns from all places of
    `rows` windows of `length` tokens. A text is read from `context` tokens before its first place.

    name: of the method and its command. summary: for the help. use: template of the --method value
    for a folder. method: the `TrainedMethod` that learns, as "module:class". may_differ: options of
    what is trained that need not be those of the parts to start from.

    Raises UsageError for a value out of range.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    use: ClassVar[str] = "{name}:parts={folder}"
    method: ClassVar[str]
    may_differ: ClassVar[frozenset[str]] = frozenset(
        {"start", "save_dtype", "block", "intermediate", "standalone"}
    )

    heads: int = option(4, "How many tokens ahead to guess.", WHAT)
    vocabulary: int = option(0, "Guess only this many frequent tokens; 0: all.", WHAT)
    save_dtype: Saved = option(
        "float16", "Type of the saved weights: float16, bfloat16, float32, int8.", WHAT
    )
    start: str = option(
        "",
        "Folder of trained parts to start from; 'packaged': those that ship with paceline.",
        WHAT,
    )
    steps: int = option(2000, "Batches to learn from.")
    rows: int = option(16, "Windows per batch.")
    length: int = option(256, "Tokens per window.")
    context: int = option(96, "Tokens read before the first place of a text.")
    read_share: float = option(0.25, "Share of windows of texts that are only read, see --texts.")
    loss: SoftLoss = option("kl", "kl, blend (kl and total variation) or labels.")
    decay: float = option(0.8, "Loss weight of a head relative to the one before.")
    learning_rate: float = option(5e-4, "Learning rate of AdamW after the warm-up.")
    weight_decay: float = option(0.0, "Weight decay of AdamW.")
    clip: float = option(0.5, "Largest gradient norm; 0: no limit.")
    schedule: Schedule = option("constant", "constant (then linear to 0) or cosine.")
    warm_up: float = option(0.04, "Share of the steps in which the rate rises.")
    cool_down: float = option(0.2, "Share of the steps in which a constant rate falls to 0.")
    validation: float = option(0.03, "Share of texts for choosing the best step.")
    test: float = option(0.03, "Share of texts for the final figures.")
    validate_every: int = option(200, "Steps between validations.")
    patience: int = option(0, "Stop after this many validations without progress; 0: never.")
    checkpoint_every: int = option(100, "Steps between checkpoints.")
    precision: Precision = option("auto", "Precision of products: auto, float32 or bfloat16.")
    seed: int = option(0, "Same seed, same result.")

    def __post_init__(self) -> None:
        counts = ("heads", "steps", "rows", "context", "validate_every", "checkpoint_every")
        self._check_range(counts, 1)
        self._check_range(("vocabulary", "weight_decay", "clip", "patience"), 0)
        self._check_range(("seed",), 0, _MOST_SEED)
        self._check_range(("read_share", "warm_up", "cool_down", "decay"), 0, 1)
        if not self.learning_rate > 0:
            raise UsageError(f"learning_rate must be positive, got {self.learning_rate}")
        if not (self.validation > 0 and self.test > 0 and self.validation + self.test < 1):
            raise UsageError(
                f"validation and test must be shares of the texts and leave some to learn from, got "
                f"{self.validation} and {self.test}"
            )
        if self.length < self.context + self.heads + 2:
            raise UsageError(
                f"a window of {self.length} tokens has no room for places after {self.context} "
                f"tokens of context: increase the length, or reduce the context"
            )
        try:
            check_choices(self)
            self.config()
        except ModelError as error:
            raise UsageError(str(error)) from error

    @property
    def what_is_trained(self) -> list[str]:
        """Names of the options of what is trained."""
        return [each.name for each in fields(self) if each.metadata.get("panel") == WHAT]

    def config(self) -> object:
        """What is trained, for methods whose settings are enough to describe it. Raises ModelError
        for a value out of range."""
        return None

    def values_for(self, kind: type[T], **others: Any) -> T:
        """A configuration, a dataclass, from the settings of the same names, and from `others`."""
        given, wanted = {**vars(self), **others}, signature(kind).parameters
        return kind(**{name: given[name] for name in wanted if name in given})

    @classmethod
    def used(cls, folder: str) -> str:
        """The --method value that decodes with a folder's parts."""
        return cls.use.format(name=cls.name, folder=folder)

    def taps(self, layers: int) -> tuple[int, ...]:
        """Layers whose outputs are read besides the last state, 1 to `layers`, ascending."""
        return ()

    def _check_range(self, names: tuple[str, ...], least: float, most: float = inf) -> None:
        for name in names:
            value = getattr(self, name)
            if not value >= least:
                raise UsageError(f"{name} must be at least {least}, got {value}")
            if not value <= most:
                raise UsageError(f"{name} must be at most {most}, got {value}")

    @property
    def ahead(self) -> int:
        """Tokens read after a place: its root, and the one that each head guesses."""
        return self.heads + 1

    @property
    def read_rows(self) -> int:
        """Windows of a batch that hold texts which are only read, if there are such texts."""
        return min(round(self.rows * self.read_share), self.rows - 1)

    def rate(self, step: int) -> float:
        """Learning rate of a step, 0 <= step < steps."""
        rising = round(self.warm_up * self.steps)
        if step < rising:
            return self.learning_rate * (step + 1) / rising
        if self.schedule == "cosine":
            angle = pi * (step - rising) / (self.steps - rising)
            return self.learning_rate * 0.5 * (1 + cos(angle))
        falling = round(self.cool_down * self.steps)
        return self.learning_rate * min(1.0, (self.steps - step) / max(falling, 1))

    def as_json(self) -> dict[str, Any]:
        """For records."""
        return asdict(self)


@dataclass(frozen=True)
class HeadSettings(TrainerSettings):
    """Of methods whose matrices may be rounded for drafts, with the output head."""

    bits: int = option(
        0, "Learn with matrices rounded to 4 or 8 bits, as drafts on a CPU use them; 0: unrounded."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bits not in (0, 4, 8):
            raise UsageError(f"bits must be 0, 4 or 8, got {self.bits}")
        if self.bits and not self.rounds:
            raise UsageError("drafts use these parts unrounded: leave bits at 0")

    @property
    def rounds(self) -> bool:
        """Whether drafts on a CPU round such parts: those that the C library runs."""
        return True

    def as_json(self) -> dict[str, Any]:
        """See `TrainerSettings`; without bits as before there were any."""
        found = super().as_json()
        if not self.bits:
            del found["bits"]
        return found
