"""The walk: which part of a scored tree plain decoding would have produced itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline.protocols import Matcher
from paceline.records import Path
from paceline.sampling import Draw, Sampler
from paceline.stopping import Stopping
from paceline.tree import ROOT, Tree


def walk(
    tree: Tree,
    logits: torch.Tensor,
    sampler: Sampler,
    context: Sequence[int],
    stopping: Stopping,
    matcher: Matcher | None = None,
) -> Path:
    """Draw one token per visited node, and follow it down as long as the tree guessed it.

    logits: [len(tree) + 1, vocabulary], row 0 the root's.
    context: all tokens up to and including the root.
    matcher: says what may be drawn; as a condition of `stopping` it is told what was.

    At each node one token is drawn from the target's own distribution. If a child has it, the walk
    moves there; otherwise it is the bonus token and the walk ends. So the tokens are those of plain
    decoding whatever the tree says, and a virtual id is never drawn.

        tree: root ─ 7 ─ 4, draws 7, 4, 2  ->  nodes (0, 1), tokens (7, 4, 2)
        tree: root ─ 7 ─ 4, draws 7, 5     ->  nodes (0,),   tokens (7, 5)
    """
    draw = _draws(tree, logits, sampler, len(context), matcher)
    text = list(context)
    nodes: list[int] = []
    node = ROOT
    while True:
        token = draw(node + 1, text)
        text.append(token)
        child = None if stopping.push(token) else tree.child(node, token)
        if child is None:
            return Path(tuple(nodes), tuple(text[len(context) :]))
        nodes.append(child)
        node = child


def _draws(
    tree: Tree, logits: torch.Tensor, sampler: Sampler, length: int, matcher: Matcher | None
) -> Draw:
    if matcher is not None:  # it is asked only at nodes that the walk reaches
        return lambda row, text: sampler.draw(logits[row], text, matcher.allowed())
    if sampler.greedy:  # positions only matter for noise
        return sampler.over(logits)
    return sampler.over(logits, [length + depth for depth in (0, *tree.depths)])
