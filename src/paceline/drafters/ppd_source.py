"""PPD's prompt tokens as a source of `auto`: its guesses are cut and united node by node.

Whether rows for the next guesses are worth their time is learned, as for every costly source.
"""

from __future__ import annotations

from paceline.drafters.host import Host
from paceline.drafters.parts import find_parts
from paceline.drafters.ppd import PpdSettings
from paceline.drafters.prompt_tokens import PromptGuesses, PromptTokens, acceptance_of
from paceline.drafters.row_source import RowSource
from paceline.planning.candidate_tree import CandidateTree, likeliest_of
from paceline.planning.ppd.adaptive_tree import AdaptiveTree
from paceline.planning.ppd.dynamic_tree import StateTree, lay_out
from paceline.protocols import TREES, VIRTUAL_TOKENS
from paceline.records import Round, TextStart
from paceline.tree import EMPTY, ROOT, Tree

__all__ = ["PpdSource"]

_MOST_GUESSES = 12
_PLACES = 2
"""Most nodes, root included, that prompt tokens follow."""


class PpdSource(RowSource):
    """Guesses by prompt tokens after the nodes of another's tree.

    host: the model. settings: of `ppd`; only the parts count here.

    Raises what `Ppd` raises.
    """

    requires = frozenset({TREES, VIRTUAL_TOKENS})

    def __init__(self, host: Host, settings: PpdSettings) -> None:
        parts = find_parts(PromptTokens, settings.parts, host.fingerprint)
        table = acceptance_of(parts, host.target.vocab_size)
        self._known: AdaptiveTree = host.learn(
            (PpdSource, settings.parts, table), lambda: AdaptiveTree(table)
        )
        self._guesses = PromptGuesses(parts, host, self._known.observe)
        self._rows = _prompts(self._guesses.first, parts.config.prompt_tokens, parts.config.epts)
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
        chances = self._known.chances.of(self._guesses.shares)
        found = likeliest_of(chances, min(budget, _MOST_GUESSES))
        tokens = tuple([known[len(path) - 1][path[-1]] for path in found.paths])
        return Tree(tokens, found.parents, found.path_chances)

    def add_rows(self, tree: Tree, most: int) -> Tree:
        """Add all prompt tokens after the nodes where the accepted path is likeliest to end."""
        places = max(0, min(_PLACES, most // len(self._rows)))
        self._stand = places > 0
        for node in _likeliest_ends(tree)[:places]:
            tree = tree.graft(self._rows, node)
        return tree

    def observe(self, round: Round) -> None:
        """Judge earlier guesses, and read the next ones after the last accepted node."""
        self._guesses.observe(round, read=self._stand)
        self._stand = False


def _prompts(first: int, prompt_tokens: int, epts: int) -> Tree:
    """All prompt tokens after one node: a chain for each of their embeddings."""
    shape = lay_out(StateTree(CandidateTree(), (), prompt_tokens, epts))
    tokens = tuple([first + embedding for embedding in shape.prompts])
    return Tree(tokens, shape.parents, (0.0,) * len(tokens))


def _likeliest_ends(tree: Tree) -> list[int]:
    """The root and all nodes, those where the accepted path is likeliest to end first."""
    path_chances = {ROOT: 1.0, **dict(enumerate(tree.weights or (0.5,) * len(tree)))}
    ends = dict(path_chances)
    for node, parent in enumerate(tree.parents):
        ends[parent] -= path_chances[node]
    return sorted(ends, key=lambda node: -ends[node])
