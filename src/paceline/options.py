"""The settings of a request, and the core objects made from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import partial
from operator import index
from typing import Any

from torch import nn

from paceline.constraints import Constraint
from paceline.errors import UsageError, meant
from paceline.sampling import LogitsProcessor, Sampler
from paceline.stopping import Stopping
from paceline.typical import Typical, check_typical

MOST_LOGPROBS = 20
"""Most alternatives reported per log-probability."""

MOST_NODES = 4096
"""Most nodes of a tree: a pass compares each with all others, and no larger one has ever paid."""


@dataclass(frozen=True)
class Options:
    """Settings of one generation. The default is greedy decoding of up to 256 tokens. None is the
    default of every setting.

    max_new_tokens: at least 1; the model's context limits it further.
    temperature … processors, presence_penalty, frequency_penalty: see `Sampler`.
    logit_bias: token -> number added to its logit, in [-100, 100].
    logprobs: report the log-probability of every token and of this many (0 to 20) of the likeliest
    in its place; None reports neither. They are of softmax(raw logits).
    constraint: what the text must follow, see `Constraint` and docs/constrained.md; it also says
    where the text may end and where it must.
    stop: strings that end the text and are not part of it.
    ignore_eos: continue past end-of-sequence tokens, unless there is a constraint.
    budget: most nodes a drafter may propose per round; 0 is plain decoding. None is the session's,
    which by default plans as many as pay, see docs/planning.md.
    typical: lossy: accept guesses that are likely enough, see `Typical`; True for its defaults.
    record: whether later texts may be guessed from this one: its answer is added to the session's
    datastore and reference store, if it has these, and drafters may remember it.

    Raises UsageError for values out of range or of another kind, and for a fraction in place of a
    whole number.
    """

    max_new_tokens: int = 256
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int = 0
    stop: Sequence[str] = ()
    processors: tuple[LogitsProcessor, ...] = ()
    ignore_eos: bool = False
    budget: int | None = None
    typical: Typical | bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    logprobs: int | None = None
    constraint: Constraint | None = None
    record: bool = True

    def __post_init__(self) -> None:
        self._fill_in()
        Stopping(self.max_new_tokens)  # refuses what is below 1
        check_budget(self.budget)
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        wanted = "stop must be a text or a list of texts"
        stop = _listed(stop, wanted, lambda each: isinstance(each, str))
        if "" in stop:
            raise UsageError("a stop string is empty: leave it out or write at least one character")
        processors = _listed(self.processors, "processors must be a list of functions", callable)
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "processors", processors)
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))
        if not isinstance(self.constraint, Constraint | None):
            raise UsageError(
                "constraint must be a Constraint, as Constraint.regex(…) makes, got "
                f"{type(self.constraint).__name__}"
            )
        if not isinstance(self.typical, Typical | bool):
            raise UsageError(f"typical must be True, False or a Typical, got {self.typical!r}")
        if self.logprobs is not None and not 0 <= self.logprobs <= MOST_LOGPROBS:
            raise UsageError(f"logprobs must be in [0, {MOST_LOGPROBS}], got {self.logprobs}")
        sampler = self.sampler()
        if self.acceptance is not None:
            check_typical(sampler, constrained=self.constraint is not None)

    def with_(self, **changes: Any) -> Options:
        """A copy with changes; raises UsageError for a name that is not a setting."""
        known = [field.name for field in fields(self)]
        for name in changes:
            if name not in known:
                use = ", ".join(known)
                raise UsageError(f"unknown option {name!r}{meant(name, known)}: use one of {use}")
        return replace(self, **changes)

    def of_texts(self, count: int) -> Iterator[Options]:
        """The settings of each text of a batch, made as they are asked for. Text i has the seed
        `seed + (i << 64)` and, if there are several, a deep copy of the processors; those marked
        stateless and the modules that they hold are shared.

        Raises UsageError for processors that cannot be copied.
        """
        for place in range(count):
            own = _copied(self.processors) if count > 1 else self.processors
            yield replace(self, seed=self.seed + (place << 64), processors=own)

    @property
    def acceptance(self) -> Typical | None:
        """Which guesses are accepted even if plain decoding differs; None for none: lossless."""
        return Typical() if self.typical is True else self.typical or None

    def sampler(self, prompt_tokens: int = 0) -> Sampler:
        """The sampler for these options and a prompt of this many tokens."""
        names = [each.name for each in fields(Sampler) if each.name != "prompt_tokens"]
        own = {name: getattr(self, name) for name in names}
        own["logit_bias"] = tuple(self.logit_bias.items())
        return Sampler(**own, prompt_tokens=prompt_tokens)

    def _fill_in(self) -> None:
        """Replace None by defaults, and what counts as a number by an int or a float."""
        for setting in fields(self):
            value, kind = getattr(self, setting.name), str(setting.type).removesuffix(" | None")
            if value is None:
                made = setting.default_factory
                value = setting.default if made is MISSING else made()
            elif kind in _CONVERTERS:
                value = _CONVERTERS[kind](setting.name, value)
            object.__setattr__(self, setting.name, value)


def check_budget(budget: int | None) -> None:
    """Raises UsageError for a budget that is out of range."""
    if budget is None:
        return
    if budget < 0:
        raise UsageError(f"budget must be at least 0, got {budget}")
    if budget > MOST_NODES:
        raise UsageError(f"budget must be at most {MOST_NODES}, got {budget}")


def whole_number(name: str, value: Any) -> int:
    """The value as an int; raises UsageError for a fraction or what is no number."""
    try:
        return index(value)
    except TypeError as error:
        raise UsageError(f"{name} must be a whole number, got {value}") from error


def _number(name: str, value: Any) -> float:
    try:
        return float(value + 0.0)  # a text cannot be added to
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{name} must be a number, got {value!r}") from error


def _switch(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{name} must be True or False, got {value!r}")
    return value


_CONVERTERS: Mapping[str, Callable[[str, Any], float]] = {
    "int": whole_number,
    "float": _number,
    "bool": _switch,
}
"""By the kind of a setting, as annotated; any may also be None."""


def _biases(given: Any) -> dict[int, float]:
    if not isinstance(given, Mapping):
        raise UsageError(f"logit_bias must map token ids to numbers, got {given!r}")
    return {
        whole_number("a token of logit_bias", token): _number("a bias of logit_bias", bias)
        for token, bias in given.items()
    }


def _listed(given: Any, wanted: str, fits: Callable[[Any], bool]) -> tuple[Any, ...]:
    items = tuple(given) if isinstance(given, Iterable) else (None,)
    if not all(map(fits, items)):
        raise UsageError(f"{wanted}, got {given!r}")
    return items


def held_by(rule: Any) -> list[Any]:
    """What a processor or criterion holds that its copies may share: attributes, also of the object
    whose method it is, what a partial function is given, and the weights of a module."""
    given = (*rule.args, *rule.keywords.values()) if isinstance(rule, partial) else ()
    holders = (rule, getattr(rule, "__self__", None), *given)
    parts = [part for each in holders for part in getattr(each, "__dict__", {}).values()]
    modules = [each for each in holders if isinstance(each, nn.Module)]
    return [*parts, *given, *(weight for each in modules for weight in each.parameters())]


def _copied(processors: tuple[LogitsProcessor, ...]) -> tuple[LogitsProcessor, ...]:
    shared: list[object] = [each for each in processors if getattr(each, "stateless", False)]
    held = (part for each in processors for part in held_by(each))
    shared += [part for part in held if isinstance(part, nn.Module | nn.Parameter)]
    try:
        return deepcopy(processors, {id(each): each for each in shared})
    except Exception as error:  # classes raise whatever they like
        raise UsageError(
            "a processor cannot be copied for each text of the batch: mark it stateless if it "
            f"keeps no state, or generate the texts one by one ({str(error)[:200]})"
        ) from error
