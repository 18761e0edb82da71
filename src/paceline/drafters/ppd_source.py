"""PPD's prompt tokens as a source of `auto`: its guesses are cut and united node by node.

Whether rows for the next guesses are worth their time is learned, as for every costly source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.drafters.costly_sources import CostlySources
from paceline.drafters.host import Host
from paceline.drafters.parts import find_parts
from paceline.drafters.ppd import PpdSettings
from paceline.drafters.prompt_tokens import PromptGuesses, PromptTokens, acceptance_of
from paceline.planning.calibration import ShareChances
from paceline.planning.candidate_tree import CandidateTree, likeliest
from paceline.planning.ppd.dynamic_tree import StateTree
from paceline.protocols import TREES, VIRTUAL_TOKENS, Drafter
from paceline.records import Round, TextStart
from paceline.tree import EMPTY, ROOT, Tree

_MOST_GUESSES = 12
_PLACES = 2  # most nodes, root included, that prompt tokens follow


class RowSources:
    """The sources of one text whose guesses need rows in the pass before, by number. The drafter
    that unites sources decides when they are worth that. names: of all sources. known: judges their
    worth. bought: sources with rows in the last pass -> `sure` when asked, rows, and the pass's width."""

    def __init__(
        self, sources: Mapping[int, PpdSource], names: Sequence[str], known: CostlySources
    ) -> None:
        self.sources, self._names, self._known = sources, names, known
        # By source: `sure` when it was asked, and its rows.
        self._added: dict[int, tuple[float, int]] = {}
        self.bought: dict[int, tuple[float, int, int]] = {}

    def begin(self) -> None:
        """A text begins, or resumes elsewhere: it has no rows yet."""
        self._added, self.bought = {}, {}

    def add_to(self, tree: Tree, sure: float, budget: int) -> tuple[Tree, list[int]]:
        """A tree of at most `budget` nodes, with rows of the sources whose next guesses are worth
        them; and the numbers of these sources. sure: see `CostlySources.asks`."""
        for place, source in self.sources.items():
            if self._known.asks(self._names[place], sure):
                wider = source.add_rows(tree, budget - len(tree))
                if len(wider) > len(tree):
                    self._added[place] = sure, len(wider) - len(tree)
                    tree = wider
        return tree, list(self._added)

    def judge(self, round: Round) -> None:
        """Judge what the rows of the pass before have gained."""
        for place, (sure, rows, width) in self.bought.items():
            tokens, (_, claimed) = round.owed_to(place), round.rows_owed_to(place)
            self._known.judge(self._names[place], sure, tokens, claimed, width, rows)
        nodes = len(round.tree)  # without those cut off by the end of the text
        self.bought = {
            place: (sure, min(rows, nodes), 1 + nodes)
            for place, (sure, rows) in self._added.items()
        }
        self._added = {}


class PpdSource(Drafter):
    """Guesses by prompt tokens after the nodes of another's tree.

    host: the model. settings: of `ppd`; only the parts count here.

    Raises what `Ppd` raises.
    """

    requires = frozenset({TREES, VIRTUAL_TOKENS})

    def __init__(self, host: Host, settings: PpdSettings) -> None:
        parts = find_parts(PromptTokens, settings.parts, host.fingerprint)
        table = acceptance_of(parts, host.target.vocab_size)
        self._chances: ShareChances = host.learn(
            (PpdSource, settings.parts, table), lambda: ShareChances(table.distances)
        )
        self._guesses = PromptGuesses(parts, host, table.ranks, self._chances.learn)
        # All prompt tokens after one node: a chain for each of their embeddings.
        every = StateTree(CandidateTree(), (), parts.config.prompt_tokens, parts.config.epts)
        self._rows = every.nodes((), self._guesses.first)
        self._stand = False  # whether prompt tokens are in this round's tree

    def start(self, text: TextStart) -> None:
        """Begin without guesses; what was learned about their worth is kept."""
        self._guesses.start(text)
        self._stand = False

    def propose(self, budget: int) -> Tree:
        """The likeliest combinations of guesses from the last round's rows."""
        known = self._guesses.tokens
        if not known or budget < 1:
            return EMPTY
        chances = self._chances.of(self._guesses.shares)
        return likeliest(chances, min(budget, _MOST_GUESSES)).tree(known)

    def add_rows(self, tree: Tree, most: int) -> Tree:
        """Add all prompt tokens after the nodes where the accepted path is likeliest to end, at most
        `most` rows; none if they do not fit. Their weights are 0, and no source proposes them."""
        places = max(0, min(_PLACES, most // len(self._rows)))
        self._stand = places > 0
        for node in _likeliest_ends(tree)[:places]:
            tree = tree.graft(self._rows, node)
        return tree

    def observe(self, round: Round) -> None:
        """Judge earlier guesses, and read the next ones after the last accepted node."""
        self._guesses.observe(round, read=self._stand)
        self._stand = False


def _likeliest_ends(tree: Tree) -> list[int]:
    """The root and all nodes, those where the accepted path is likeliest to end first."""
    path_chances = {ROOT: 1.0, **dict(enumerate(tree.weights or (0.5,) * len(tree)))}
    ends = dict(path_chances)
    for node, parent in enumerate(tree.parents):
        ends[parent] -= path_chances[node]
    return sorted(ends, key=lambda node: -ends[node])
