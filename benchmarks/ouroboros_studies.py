"""The methods compared for each table of Ouroboros (Zhao et al. 2024, arXiv 2402.13720).

Fixed contenders are the paper's: drafts of a fixed length, without a planner and never switched
off. The draft model's Lookahead decoding has W = G = 7 columns and phrases and N = 5 levels, since
the paper's windows (13 to 20 columns) are for GPUs.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

TASKS = ("humaneval", "mbpp", "gsm8k", "cnndm", "wmt16_deen")
TALKING = ("gsm8k", "cnndm", "wmt16_deen")
"""The tasks of table 3."""
COPIED = ("humaneval", "gsm8k", "cnndm", "wmt16_deen", "mt_bench")
"""The tasks of the study of quantised copies."""
MIXED = ("mbpp", "gsm8k", "cnndm", "wmt16_deen")
"""The tasks of table 16."""

LENGTH = 4
"""Tokens of the draft model's drafts."""
LENGTHS = (2, 8)
"""Other lengths for the simulation: the best one depends on the cost of a draft pass."""

# A smaller budget would shrink windows; this fits the largest one here.
_DRAFT_BUDGET = 128
_OF_PAPER = f"branches=0,budget={_DRAFT_BUDGET},text=false"
_FIXED = f"{_OF_PAPER},window=7"


def speculative(length: int = LENGTH) -> str:
    """Speculative decoding, token by token."""
    return f"speculative:branches=0,length={length}"


def ouroboros(length: int = LENGTH, more: str = "") -> str:
    """The whole method, except for what `more` changes."""
    return f"ouroboros:{_FIXED},length={length}{more and ','}{more}"


MAIN = {
    "plain": "plain",
    "lookahead": "lookahead",
    "speculative": speculative(),
    "ouroboros": ouroboros(),
}
"""The rows of tables 3 and 14."""

KEPT = {**MAIN, "lookahead, pool kept": "lookahead:history=true"}
"""The rows of table 14, and Lookahead decoding with the pool of earlier texts."""

PARTS = {
    "plain": "plain",
    "lookahead": "lookahead",
    "speculative": speculative(),
    "+ phrases for drafting": ouroboros(more="lengthen=0,verification=none,history=false"),
    "+ lengthening": ouroboros(more="verification=none,history=false"),
    "+ phrases from verification": ouroboros(more="history=false"),
    "+ history": ouroboros(),
}
"""The rows of table 4; each adds a part to the one before it."""

OTHER_LENGTHS = {
    f"{name}, {length}": make(length)
    for name, make in (("speculative", speculative), ("ouroboros", ouroboros))
    for length in LENGTHS
}

PLANNED = {
    "plain": "plain",
    "lookahead": "lookahead",
    "speculative": "speculative:branches=0",
    "speculative, runners-up": "speculative",
    "+ phrases for drafting": "ouroboros:branches=0,lengthen=0,verification=none,history=false",
    "+ lengthening": "ouroboros:branches=0,verification=none,history=false",
    "+ phrases from verification": "ouroboros:branches=0,history=false",
    "+ history": "ouroboros:branches=0",
}
"""The same rows as users run them: lengths, and whether to draft at all, are planned. One row more:
runners-up beside each guess."""

_SELF = "draft=self,branches=0"
_PHRASES = f"ouroboros:{_SELF},inner=phrases"
_COLD = "history=false"
COPY = {
    "plain": "plain",
    "anpd": "anpd",
    "speculative": f"speculative:{_SELF},inner=plain",
    "speculative, anpd inside": f"speculative:{_SELF},inner=anpd",
    "+ phrases for drafting": f"{_PHRASES},lengthen=0,verification=none,{_COLD}",
    "+ lengthening": f"{_PHRASES},verification=none,{_COLD}",
    "+ phrases from verification": f"{_PHRASES},{_COLD}",
    "+ history": _PHRASES,
    "+ phrases of the prompt": f"{_PHRASES},prompt=true",
    "+ phrases beside each token": f"{_PHRASES},prompt=true,hang=all",
    "anpd inside, lengthened by phrases": f"ouroboros:{_SELF},prompt=true",
    "the same without phrases of the prompt": f"ouroboros:{_SELF}",
    "windows, no phrases of texts": f"{_PHRASES},window=7,text=false",
}
"""With a quantised copy of the target as the draft model, which comes near the paper's cost ratio
and agreement. Rows "+ lengthening" to "+ phrases beside each token" each add to the one before."""

DRAFTS = {
    "trained draft": "",
    "4-bit copy": ",draft=self,inner=plain,weights=int4",
    "8-bit copy": ",draft=self,inner=plain,weights=int8",
}
"""Draft models of three sizes, for figure 1."""

TRADEOFF = {
    "plain": "plain",
    **{
        f"{name}, {length}": f"speculative:branches=0,length={length}{draft}"
        for name, draft in DRAFTS.items()
        for length in (1, 2, 4, 8, 16)
    },
}
"""Figure 1: sizes of draft models and lengths of drafts."""

COUNTS = (0, 1, 2, 3, 5, 8, 12)
"""Phrases that lengthen a draft, for figure 6; the paper recommends 3."""

PHRASES = {
    "plain": "plain",
    "speculative": f"speculative:{_SELF},inner=plain,length={LENGTH}",
    **{f"{count} phrases": f"{_PHRASES},length={LENGTH},lengthen={count}" for count in COUNTS},
}
"""Figure 6."""

OTHERS = {
    "plain": "plain",
    "speculative": f"speculative:{_SELF},inner=plain",
    "cascade": f"speculative:{_SELF},inner=speculative:branches=0",
    "ouroboros": f"ouroboros:{_SELF},prompt=true",
    "eagle": "eagle",
}
"""Tables 5 and 13: EAGLE, and a still smaller model that drafts for the draft model."""

GRID = {"length": (2, 4, 8), "window": (3, 7, 10), "level": (3, 5, 7)}
"""The grid of table 9: three settings with three values each."""

ORDERED = {
    "plain": "plain",
    "cold start": ouroboros(more="history=false"),
    **dict.fromkeys(("consecutive", "interleaved", "shuffled"), ouroboros()),
}
"""The rows of table 16; those named like an order of `orders` write their texts in it. Without
phrases of earlier texts, it does not matter."""

WEIGHED = {
    "plain": "plain",
    **{
        f"{kind}, {how}": f"speculative:branches=0,weights={kind}{length}"
        for how, length in (("fixed", f",length={LENGTH}"), ("planned", ""))
        for kind in ("packed", "int8", "int4", "auto")
    },
}
"""Weights of the draft model, see `paceline.targets.prepare`."""


def grid() -> dict[str, str]:
    """Plain decoding, and every combination of `GRID`."""
    found = {"plain": "plain"}
    for length, window, level in product(*GRID.values()):
        own = f"length={length},window={window},guesses={window},level={level}"
        found[f"{length}, {window}, {level}"] = f"ouroboros:{_OF_PAPER},{own}"
    return found


@dataclass(frozen=True)
class Study:
    """Methods that write the same texts, in the same order unless they are named like another.

    limit: prompts per task. tokens: of an answer. planned: methods whose trees the planner sizes;
    the others' have a fixed budget. shares: figures are also recorded at the longest answer divided
    by these. Every method runs at all `temperatures`.
    """

    methods: Mapping[str, str]
    tasks: Sequence[str]
    limit: int
    tokens: int
    planned: Collection[str] = ()
    shares: Sequence[int] = ()
    temperatures: Sequence[float] = (0.0,)


_AS_USED = Study(PLANNED, TASKS, 4, 256, planned=PLANNED)
SIDE_BY_SIDE = {
    "fixed": Study({**PARTS, **OTHER_LENGTHS}, TASKS, 4, 256),
    "planned": _AS_USED,
    "published": _AS_USED,  # to be run without --weights: a file of its own
    "floats": _AS_USED,  # to be run with --weights packed, likewise
    "copy": Study(COPY, COPIED, 4, 256, planned=COPY),
    "sensitivity": Study(grid(), ("gsm8k",), 4, 64),
    "lengths": Study(KEPT, ("gsm8k",), 4, 512, shares=(8, 4, 2, 1)),
    "tradeoff": Study(TRADEOFF, COPIED, 2, 128),
    "phrases": Study(PHRASES, COPIED, 2, 128),
    "others": Study(
        OTHERS, ("mt_bench", "wmt16_deen", "cnndm", "gsm8k", "llma_rag"), 3, 128, planned=OTHERS
    ),
    "temperatures": Study(MAIN, TALKING, 4, 128, temperatures=(0.5, 1.0)),
    "locality": Study(ORDERED, MIXED, 4, 64),
    "weights": Study(
        WEIGHED, TASKS, 2, 128, planned=[name for name in WEIGHED if name.endswith("planned")]
    ),
}
"""Studies by name."""


def orders(tasks: Sequence[str], seed: int) -> dict[str, list[int]]:
    """Orders of texts that are given task by task (`tasks` has one entry per text): as given; one
    of each task in turns; at random."""
    kinds = list(dict.fromkeys(tasks))
    piles = [[place for place, task in enumerate(tasks) if task == kind] for kind in kinds]
    rows = range(max(map(len, piles), default=0))
    mixed = [pile[row] for row in rows for pile in piles if row < len(pile)]
    shuffled = list(range(len(tasks)))
    random.Random(seed).shuffle(shuffled)
    return {"consecutive": list(range(len(tasks))), "interleaved": mixed, "shuffled": shuffled}
