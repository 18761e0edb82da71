"""What EAGLE and Chimera share: trees that grow level by level from states that the target exposes.

Each level is guessed after the guesses of the one before, see `paceline.drafters.level_tree`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from paceline.chains import certain_end
from paceline.drafters.draw_noise import DrawNoise
from paceline.drafters.head_module import HeadModule
from paceline.drafters.host import Host
from paceline.drafters.level_tree import BeamSettings, TextLevels
from paceline.planning.cost_curve import LiveCosts
from paceline.planning.draft_length import LONGEST, DraftLength
from paceline.prefix import common_prefix
from paceline.protocols import HIDDEN_STATES, Drafter
from paceline.records import Round, TextStart
from paceline.tree import EMPTY, Tree

_HEARD = 8  # most levels that get the noise of draws


class LevelDrafter(Drafter):
    """Drafter that grows trees level by level. Of a long prompt, it reads only the end.

    model: what guesses. new_levels: makes those of a text. most: levels of a tree.

    Drafters of a host with the same model and beam share what they learn about the depth that pays.
    """

    requires = frozenset({HIDDEN_STATES})

    def __init__(
        self,
        host: Host,
        model: HeadModule,
        settings: BeamSettings,
        new_levels: Callable[[], TextLevels],
        most: int = LONGEST,
    ) -> None:
        self._beam = settings
        self._new_levels = new_levels
        self._clock, self._depth = host.clock, min(settings.depth, most)
        self._device = model.device
        self._plan: DraftLength | None = None  # None for always as many levels
        if not settings.depth:
            key = DraftLength, id(model), settings.beam
            live = LiveCosts(host.costs, host.curve)
            self._plan = host.learn(key, lambda: DraftLength(live, most))
        # When this round's first draft was asked for and its last one made, in seconds; that draft.
        self._asked: float | None = None
        self._answered, self._tree = 0.0, EMPTY
        self._noise = DrawNoise(model, host.target.vocab_size)
        self._text: list[int] = []
        self._first = 0  # place of the first token that is read
        self._levels = new_levels()
        self._seen: torch.Tensor | None = None

    def start(self, text: TextStart) -> None:
        """Begin a text. What was read of the tokens that it shares with the last one is kept,
        unless these are less than half of that. References are ignored."""
        same, before = common_prefix(self._text, text.context), len(self._text)
        self._text = list(text.context)
        self._noise.begin(text.sampler)
        self._seen, self._asked = None, None
        if not before or 2 * same < before:
            self._levels = self._new_levels()
        # The target has not read the root.
        kept = min(same, len(self._text) - 1) - self._levels.ahead - self._first
        self._levels.keep(max(0, kept))
        self._levels.record = text.record
        if not self._levels.length:
            self._first = 0

    def stop(self) -> None:
        """Let go of the target's states. What was read of them is kept, as a chat may go on, unless
        nothing is to be kept of the text."""
        self._seen = None
        if not self._levels.record:
            self._text, self._first, self._levels = [], 0, self._new_levels()

    def unread(self) -> int:
        unread = len(self._text) - 1 - self._first - self._levels.length
        return min(unread, self._beam.context or unread)

    def observe_states(self, states: torch.Tensor) -> None:
        """See `Drafter.observe_states`. They are not read before a draft is wanted: a drafter that
        is switched off costs nothing."""
        self._seen = states.to(self._device)  # the model may be spread over devices

    def propose(self, budget: int) -> Tree:
        """The likeliest paths over all levels; empty until the target has read the prompt."""
        states, read = self._seen, len(self._text) - 1
        if states is None or not read or states.shape[0] != read or budget < 1:
            return EMPTY
        plan, levels, unread, began = self._plan, self._levels, self.unread(), self._clock()
        if self._asked is None:
            self._asked = began
        if self._first + levels.length + unread < read:  # too many to read all
            levels.keep(0)
            self._first = read - unread
        text = self._text
        if self._first:
            text, states = text[self._first :], states[self._first :]
        # A prompt is read beforehand; the few new tokens of a round, in the draft's own call.
        if not levels.most_fresh or unread > levels.most_fresh:
            levels.read(text, states)
            began = self._clock()
        end = plan.end((), worth=plan.worth) if plan else certain_end(0.0, self._depth)
        levels.noise = self._noise.rows(len(self._text), min(len(end.least), _HEARD))
        self._tree, grown = levels.draft(text, states, budget, end)
        self._answered = self._clock()
        if plan is not None:
            plan.drafted(1e3 * (self._answered - began) / grown, 1)
        return self._tree

    def observe(self, round: Round) -> None:
        """Continue the text, and learn what another level is worth."""
        plan, asked, said = self._plan, self._asked, round.path.tokens
        if plan is not None and asked is not None:
            claims = _claims_by_level(self._tree)
            plan.judge(claims[: len(said)], len(self._tree.along(said)))
            plan.scored(len(claims), min(len(claims), max(round.tree.depths, default=0)))
            if not round.prefill:
                now = self._clock()
                spent = 1e3 * (now - self._answered), 1e3 * (now - asked)
                plan.played(*spent, len(said), len(self._text))
        self._asked = None
        self._text.extend(said)


def _claims_by_level(tree: Tree) -> list[float]:
    """By depth, the chance that one of its nodes is right if one of the depth before is."""
    sure = [0.0] * max(tree.depths, default=0)
    for depth, path_chance in zip(tree.depths, tree.weights or (), strict=True):
        sure[depth - 1] += path_chance
    before = [1.0, *sure]
    return [each / above if above else 0.0 for each, above in zip(sure, before)]
