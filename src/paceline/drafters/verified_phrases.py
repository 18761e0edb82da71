"""Phrases from a verification (Ouroboros, section 3.3).

The target has scored every node of the draft and of the phrases after it; the tokens that it finds
likeliest after each node are its outputs.

    draft c d e f, root b    outputs: b: c, c: x, d: e, e: f, f: g    (d was rejected: x is said)

    matching, 3 tokens long:  d -> (e, f, g), e -> (f, g)    where outputs agree with the draft
    refined, 3 tokens long:   x -> (e, f, g)                 all outputs from the rejection on
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from paceline.drafters.phrases import Phrase
from paceline.prefix import common_prefix
from paceline.records import Round
from paceline.scores import choices
from paceline.tree import ROOT


@dataclass(frozen=True)
class Verified:
    """The scored part of a draft.

    last: the token before the phrases.
    draft: its tokens. right: how many of them were accepted.
    outputs: the target's, after the root and after each token of the draft; along what was accepted
    these are the draft's.
    phrases: those tried after the draft, each with the target's outputs after those of its tokens
    that were scored; none if the draft was cut.
    """

    last: int
    draft: Phrase
    right: int
    outputs: Phrase
    phrases: tuple[tuple[Phrase, Phrase], ...] = ()

    @property
    def accepted(self) -> bool:
        """Whether all of the draft was accepted."""
        return self.right == len(self.draft)

    @classmethod
    def of(
        cls, round: Round, root: int, chain: Sequence[int], phrases: Sequence[Phrase]
    ) -> Verified:
        """What a round shows of the draft `chain` after `root` and the phrases after it."""
        nodes = round.tree.along(chain)
        whole = len(nodes) == len(chain)
        end = nodes[-1] if nodes else ROOT
        tried = [(phrase, round.tree.along(phrase, end)) for phrase in phrases if whole]
        draft = tuple(chain[: len(nodes)])
        right = common_prefix(draft, round.path.tokens)
        # Rows are long: only those wanted are read. The text may never reach one of NaN.
        choose = cache(choices(round.logits, check=lambda score: None))

        def best(node: int) -> int:
            return choose(node + 1)

        return cls(
            last=(root, *draft)[-1],
            draft=draft,
            right=right,
            outputs=(*draft[:right], *map(best, [ROOT, *nodes][right:])),
            phrases=tuple((phrase, tuple(map(best, path))) for phrase, path in tried),
        )


def matching(seen: Verified, size: int, shortest: int) -> list[tuple[int, Phrase]]:
    """Keys and phrases from the rejected part of a draft: runs of the target's outputs that agree
    with the draft up to their last token, the paper's sub-segments.

    size: most tokens of a phrase. shortest: least tokens of a run, or `size` if that is less.
    """
    found = []
    for place in range(seen.right, len(seen.draft)):
        outputs, following = seen.outputs[place + 1 :], seen.draft[place + 1 :]
        length = min(1 + common_prefix(outputs, following), len(outputs), size)
        if length >= min(shortest, size):
            found.append((seen.draft[place], outputs[:length]))
    return found


def corrected(seen: Verified, size: int) -> list[tuple[Phrase, Phrase]]:
    """The tried phrases after an accepted draft, each with the target's version of it: its outputs
    after the draft and along the phrase; nothing if the draft was rejected."""
    found = []
    for phrase, outputs in seen.phrases if seen.accepted else ():
        better = (seen.outputs[-1], *outputs)[:size]
        if len(better) == size:
            found.append((phrase, better))
    return found


def refined(seen: Verified, size: int) -> list[tuple[int, Phrase]]:
    """Keys and phrases of `size` tokens from all outputs of the target from the rejection on,
    completed at the end with those along each phrase; nothing if the draft was accepted."""
    if seen.accepted:
        return []
    said = seen.outputs[seen.right :]
    ends = [outputs for _, outputs in seen.phrases] or [()]
    found: dict[tuple[int, Phrase], None] = {}
    for end in ends:
        text = (*said, *end)
        for place in range(len(said)):
            phrase = text[place + 1 : place + 1 + size]
            if len(phrase) == size:
                found[text[place], phrase] = None
    return list(found)
