"""Speculative decoding with a draft model (Leviathan et al. 2023, arXiv 2211.17192, and Chen et al.
2023, arXiv 2302.01318), without their acceptance rule: acceptance is the loop's own walk.

A smaller model with the same tokenizer writes a little ahead of the text, see `DraftText`. It draws
with the target's noise at every position (drafter-invariant speculation, arXiv 2408.07978), so if
the two distributions are alike, they mostly draw the same tokens, at any temperature.

    text … a, root b        the draft model says c (e was next best), then d (f was next best)
    tree: root ─┬─ c ─┬─ d
                │     └─ f
                └─ e

The draft model has a drafter of its own, so the same loop drafts for it: n-grams (`inner=anpd`),
prompt tokens (`inner=ppd`), or a still smaller model (`inner=speculative:draft=…`), a cascade as in
the appendix of Ouroboros (Zhao et al. 2024, arXiv 2402.13720).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from paceline.chains import certain_end
from paceline.drafters.draft_chain import Guess
from paceline.drafters.draft_text import DraftText
from paceline.drafters.host import COPIES, SELF, Host, ModelChoice
from paceline.drafters.registry import check_method, make_drafter
from paceline.drafters.settings import Settings, whole
from paceline.errors import UsageError
from paceline.planning.cost_curve import LiveCosts
from paceline.planning.draft_length import LONGEST, DraftLength
from paceline.prefix import common_prefix
from paceline.protocols import Drafter
from paceline.records import Round, TextStart
from paceline.tree import EMPTY, Tree

_MOST = 4096  # largest number of guesses in a row, beside one, or in a tree
_LARGE = 64 << 20
"""Bytes of weights from which on a draft pass on a CPU takes long enough for n-grams to pay: with
124 MB they do, with 11 MB they do not (docs/paper-ouroboros.md)."""
_RIGHT_IN_A_ROW = 3.5
"""Guesses of a 4-bit copy that came true per round, at least (docs/paper-ouroboros.md)."""


@dataclass(frozen=True)
class SpeculativeSettings(Settings):
    """Settings of `Speculative`, and of other methods that draft with a smaller model.

    draft: the draft model: alias, folder, GGUF file or hub id, with the tokenizer of the target; ""
    for the one that comes with this package for the target; "self" for a copy of the target with
    low-bit weights; in Python also a `Host`, or what `Host.open` can open.
    length: guesses in a row; 0 for as many as pay, see `DraftLength`.
    confidence: a draft ends after a guess to which the draft model gives a smaller chance than
    this, from 0 to 1.
    branches: runners-up to add beside each guess.
    budget: nodes that the inner drafter may propose per pass of the draft model; 0 for as many as
    pay, planned as for the target.
    inner: the draft model's own drafter, as a method or, in Python, as a function that makes one, or
    an object, which serves one text at a time; "" for n-grams where passes are slow, in a copy of
    the target or with 64 MB of weights on a CPU, else none.
    device, dtype, weights: of the draft model, as in `paceline.load`. By default device and dtype
    are the target's, and weights on a CPU those of a GGUF file, else int4 from 8 MB on: guesses need
    not be exact. A copy has int4 or int8 weights, and the target's device and dtype.

    Raises UsageError for a value out of range, ModelError for missing parts of `inner`.
    """

    draft: Any = ""
    length: int = whole(0, 0, _MOST)
    confidence: float = 0.0
    branches: int = whole(1, 0, _MOST)
    budget: int = whole(0, 0, _MOST)
    inner: Any = ""
    device: str = ""
    dtype: str = ""
    weights: str = ""

    _own_inner: ClassVar[str] = ""  # no method, but made where it is used

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.confidence <= 1:
            raise UsageError(f"confidence must be a number from 0 to 1, got {self.confidence!r}")
        if self.is_copy and self.weights and self.weights not in COPIES:
            raise UsageError(
                f"draft=self copies the model with weights {' or '.join(COPIES)}, not "
                f"{self.weights!r}"
            )
        if self.is_copy and (self.device or self.dtype):
            raise UsageError(
                "draft=self runs on the device of the model: leave out device and dtype"
            )
        if isinstance(self.inner, str) and self.inner not in ("", self._own_inner):
            check_method(self.inner)

    @property
    def is_copy(self) -> bool:
        """Whether the draft model is a copy of the target."""
        return isinstance(self.draft, str) and self.draft == SELF

    def inner_method(self, slow: bool) -> str:
        """What `inner` names, or the default. slow: whether passes of the draft model are."""
        return self.inner or ("anpd" if self.is_copy or slow else "plain")


class Speculative(Drafter):
    """Drafts with a smaller model.

    host: the model to draft for.

    Weights of guesses come from the draft model's own chances, see `Guess`. Drafters of a host
    share what they learn of the draft model: when guesses pay, and what its own drafter has found.

    widths: rows of a pass -> passes of the draft model so far, for reports.

    Raises UsageError for a value out of range, ModelError if the draft model is missing, cannot be
    loaded or has another tokenizer.
    """

    def __init__(
        self, host: Host, settings: SpeculativeSettings | None = None, **changes: Any
    ) -> None:
        self._settings = own = replace(settings or SpeculativeSettings(), **changes)
        choice = ModelChoice(own.draft, own.device, own.dtype, own.weights)
        small = open_draft(host, choice)
        inner, size = self._drafter_of(small), host.target.vocab_size
        self._draft = DraftText(small, inner, size, own.branches, own.budget)
        self._most = own.length or LONGEST
        self._takes_over, self._waits = small.takes_over, False
        self.promise = _RIGHT_IN_A_ROW if own.is_copy else 0.0
        self._plan: DraftLength | None = None
        if not own.length:
            self._plan = host.learn(
                (DraftLength, choice), lambda: DraftLength(LiveCosts(host.costs, host.curve))
            )
        self._clock = host.clock
        self.widths: Counter[int] = Counter()
        # When this round's first proposal was asked for and its last one given, in seconds.
        self._asked: float | None = None
        self._answered = 0.0
        self._tree = EMPTY

    def start(self, text: TextStart) -> None:
        """Begin a text; the draft model reads it when first asked, except what its cache already
        has."""
        self._draft.start(text)
        self._asked, self._waits = None, self._takes_over

    def resume(self, text: TextStart) -> None:
        """Continue with other last tokens; guesses that are still right are kept."""
        self._draft.resume(text)
        self._asked = None

    def stop(self) -> None:
        """Release the draft model's cache."""
        self._draft.stop()

    def unread(self) -> int:
        """See `Drafter.unread`. What is taken over from another cache is not read."""
        return 0 if self._takes_over else self._draft.unread

    def waits(self) -> bool:
        """See `Drafter.waits`. What it takes over is not there before."""
        return self._waits

    def propose(self, budget: int) -> Tree:
        """The draft model's continuation and the runners-up beside it, as far as that pays."""
        if budget < 1 or self._waits:
            return EMPTY
        if self._asked is None:
            self._asked = self._clock()
        plan, confidence, most = self._plan, self._settings.confidence, min(budget, self._most)
        chances = [guess.chance for guess in self._draft.guesses]
        doubtful = min(chances, default=1.0) < confidence
        if len(chances) < most and not doubtful and (plan is None or plan.pays(chances)):
            end = plan.end(chances, confidence) if plan else certain_end(confidence, most)
            for place, each in enumerate(self._draft.guess(most, end)):
                self.widths[each.width] += 1
                if plan is not None and not each.prefill:
                    plan.drafted(1e3 * each.seconds, len(each.guesses), first=not place)
        self._answered = self._clock()
        self._tree = guess_tree(self._draft.guesses[:most]).prune(budget)
        return self._tree

    def observe(self, round: Round) -> None:
        """Take over what was committed, and learn what guesses are worth."""
        if self._plan is not None and (self._asked is not None or self._draft.guesses):
            self._learn(self._plan, round)
        self._draft.observe(round.path.tokens)
        self._asked, self._waits = None, False

    def _drafter_of(self, small: Host) -> Drafter:
        """The draft model's own drafter."""
        inner: Drafter | Callable[[], Drafter] | str = self._settings.inner
        if not isinstance(inner, str):
            return inner if isinstance(inner, Drafter) else inner()
        found = small.target.describe()
        slow = found.device == "cpu" and found.weight_bytes >= _LARGE
        return make_drafter(self._settings.inner_method(slow), small)

    def _learn(self, plan: DraftLength, round: Round) -> None:
        said = round.path.tokens
        guessed = [guess.token for guess in self._draft.guesses]
        chances = [guess.chance for guess in self._draft.guesses[: len(said)]]
        plan.judge(chances, common_prefix(guessed, said))
        if self._asked is None:
            return
        whole = round.tree is self._tree
        plan.scored(len(guessed), len(guessed) if whole else len(round.tree.along(guessed)))
        if not round.prefill:
            now = self._clock()
            spent = 1e3 * (now - self._answered), 1e3 * (now - self._asked)
            plan.played(*spent, len(said), self._draft.committed)


def guess_tree(guesses: Sequence[Guess]) -> Tree:
    """The chain of guesses, whose cache entries then already lie where they will stay, and the
    runners-up of each; weights are chances to be accepted."""
    if not guesses:
        return Tree((), (), ())
    chain, leaves = list[tuple[int, int, float]](), list[tuple[int, int, float]]()
    path_chance = 1.0
    for place, guess in enumerate(guesses):
        leaves += [(token, place - 1, path_chance * chance) for token, chance in guess.others]
        path_chance *= guess.chance
        chain.append((guess.token, place - 1, path_chance))
    return Tree(*zip(*chain, *leaves))


def open_draft(host: Host, choice: ModelChoice) -> Host:
    """The draft model's host; if the choice is a host, that one.

    Raises UsageError if the host cannot open models, and what its opener raises.
    """
    if isinstance(choice.model, Host):
        return choice.model
    if not isinstance(choice.model, Hashable):
        raise UsageError(f"draft must be the name of a model or a model, got {choice.model!r}")
    if host.open is None:
        raise UsageError(
            f"this host cannot open the draft model {choice.model!r}: give the drafter a host with "
            "`open`, or pass the draft model as a host"
        )
    # Kept by the host: what is learned with the draft model serves the next text, too.
    return host.learn((Speculative, choice), partial(host.open, choice))
