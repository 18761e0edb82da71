"""A wrapper that checks a target against its contract."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from paceline.protocols import TREES, Target
from paceline.records import Path
from paceline.testing.reference import Reference, require
from paceline.tree import EMPTY, Tree


@dataclass
class WatchedTarget:
    """Forwards calls to a target, knows the text of every slot, and compares all rows with a
    reference, within a tolerance of logits. Raises AssertionError if the target breaks its
    contract."""

    target: Target
    reference: Reference
    tolerance: float
    rng: random.Random
    texts: dict[int, list[int]] = field(default_factory=dict)

    def tokens(self, count: int) -> list[int]:
        """Random tokens of the vocabulary."""
        return [self.rng.randrange(self.target.vocab_size) for _ in range(count)]

    def tree(self, size: int) -> Tree:
        """A random tree, or a chain if the target scores only chains."""
        tokens = self.tokens(size)
        if TREES not in self.target.capabilities:
            return Tree.chain(tokens)
        return Tree(tuple(tokens), tuple(self.rng.randrange(-1, node) for node in range(size)))

    def open(self, context: Sequence[int]) -> int:
        """Open a text, and check that its slot is not in use."""
        slot = self.target.open(context)
        require(slot not in self.texts, f"open returned slot {slot}, which another text has")
        self.texts[slot] = list(context)
        pending = self.target.pending(slot)
        require(
            0 <= pending < len(context),
            f"a text of {len(context)} tokens has {pending} pending in front of its root",
        )
        return slot

    def close(self, slot: int) -> None:
        """Close a text."""
        self.target.close(slot)
        del self.texts[slot]

    def prefill(self, slot: int, most: int) -> None:
        """Read part of a prompt in a pass of its own."""
        before = self.target.pending(slot)
        left = self.target.prefill(slot, most)
        self._check_prefill({slot: most}, {slot: before})
        require(
            left == self.target.pending(slot),
            f"prefill returned {left} tokens left, but pending {self.target.pending(slot)}",
        )

    def score(
        self, trees: Mapping[int, Tree], prefill: Mapping[int, int] | None = None
    ) -> dict[int, torch.Tensor]:
        """Score trees, and compare each real token's row with its text read from scratch."""
        pieces = prefill or {}
        before = {slot: self.target.pending(slot) for slot in self.texts}
        scores = self.target.score(trees, pieces)
        require(
            scores.keys() == trees.keys(),
            f"score was given trees of the slots {sorted(trees)} and returned {sorted(scores)}",
        )
        self._check_prefill(pieces, before)
        for slot in self.texts.keys() - trees.keys() - pieces.keys():
            now = self.target.pending(slot)
            require(
                now == before[slot],
                f"a pass without slot {slot} changed its pending tokens from {before[slot]} to "
                f"{now}",
            )
        for slot, tree in trees.items():
            self._check_rows(slot, tree, scores[slot])
        return scores

    def commit(self, paths: Mapping[int, tuple[Tree, Sequence[int]]]) -> None:
        """Commit, by slot, nodes of the tree scored last, and a random token after them."""
        whole = {}
        for slot, (tree, nodes) in paths.items():
            said = [*(tree.tokens[node] for node in nodes), *self.tokens(1)]
            whole[slot] = Path(tuple(nodes), tuple(said))
            self.texts[slot] += said
        self.target.commit(whole)
        for slot in whole:
            pending = self.target.pending(slot)
            require(
                pending == 0,
                f"after a commit {pending} tokens are pending in front of the root: the cache "
                "must hold all but the root",
            )

    def some_path(self, tree: Tree) -> list[int]:
        """A random path down from the root, without virtual tokens; may be empty."""
        paths = [tree.path_to(node) for node in range(len(tree))]
        size = self.target.vocab_size
        real = [path for path in paths if all(tree.tokens[node] < size for node in path)]
        return list(self.rng.choice([(), *real]))

    def play(self, slot: int, size: int) -> None:
        """Play a round of one text."""
        self.round({slot: self.tree(size)})

    def round(
        self, trees: Mapping[int, Tree], prefill: Mapping[int, int] | None = None
    ) -> dict[int, torch.Tensor]:
        """Score trees as `score` does, and commit a random path of each."""
        rows = self.score(trees, prefill)
        self.commit({slot: (tree, self.some_path(tree)) for slot, tree in trees.items()})
        return rows

    def compare_all(self) -> None:
        """Compare the next token's row of all open texts in one pass, then commit a token each."""
        self.round(dict.fromkeys(self.texts, EMPTY))

    def _check_rows(self, slot: int, tree: Tree, rows: torch.Tensor) -> None:
        vocab_size = self.target.vocab_size
        expected = (len(tree) + 1, vocab_size)
        require(
            tuple(rows.shape) == expected,
            f"the logits of a tree of {len(tree)} nodes are {tuple(rows.shape)}, not {expected}",
        )
        for node in range(-1, len(tree)):
            read = [tree.as_read[step] for step in tree.path_to(node)] if node >= 0 else []
            if any(token >= vocab_size for token in read):
                continue  # the reference does not have this target's embeddings
            text = [*self.texts[slot], *read]
            row, fresh = rows[node + 1].cpu(), self.reference.row(text).cpu()
            if not torch.allclose(row, fresh, rtol=0, atol=self.tolerance):
                which = "the root" if node < 0 else f"node {node} of {tree.parents}"
                most = float((row - fresh).abs().nan_to_num(0.0, float("inf")).max())
                raise AssertionError(
                    f"the row of {which} is not that of its text of {len(text)} tokens read "
                    f"from scratch: they differ by {most:.3g}"
                )

    def _check_prefill(self, pieces: Mapping[int, int], before: Mapping[int, int]) -> None:
        for slot, most in pieces.items():
            read = before[slot] - self.target.pending(slot)
            least = 1 if min(before[slot], most) > 0 else 0
            require(
                least <= read <= most,
                f"{read} of {before[slot]} pending tokens were read, where at most {most} were "
                "allowed",
            )
