"""Simulate the speed-up of Ouroboros over plain decoding by the cost of a draft pass.

    python benchmarks/ouroboros_simulation.py --model smollm2-135m --plot docs/images/ouroboros-simulation

It shows at which cost Ouroboros starts to pay, with the measured acceptance and with the paper's.

Reads the studies `fixed` and `costs` (benchmarks/ouroboros.py). They hold each contender's gained
tokens, and its passes of target and draft model by rows. With a cost ratio c, the time of a one-row
draft pass in one-row target passes, a run takes

    sum over target passes of target(rows)  +  c x sum over draft passes of draft(rows)

where target(rows) and draft(rows) are costs in one-row passes: as measured here, or 1, as on
hardware where rows are free. Time outside passes is left out. Speculative decoding and Ouroboros
each use the best measured draft length at every ratio.

The paper's block efficiencies (its table 12, Yi 34B with 6B) use its draft lengths (table 11), with
rows free. It does not say how many passes its draft model makes; the estimate here is the draft
length over the tokens per pass that its Lookahead decoding gains (on the target).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from paceline.planning.cost_curve import CostCurve
from tables import shown_command

RATIOS = tuple(step / 100 for step in range(2, 71))
FAMILIES = {
    "lookahead": ("lookahead",),
    "speculative": ("speculative", "speculative, 2", "speculative, 8"),
    "ouroboros": ("+ history", "ouroboros, 2", "ouroboros, 8"),
}
"""Method -> contenders, of which the best counts."""

PAPER = {
    "humaneval": {"speculative": (11.16, 12), "lookahead": (3.08, 0), "ouroboros": (13.12, 12)},
    "mbpp": {"speculative": (6.14, 6), "lookahead": (2.71, 0), "ouroboros": (7.43, 6)},
    "gsm8k": {"speculative": (5.23, 7), "lookahead": (2.30, 0), "ouroboros": (4.65, 4)},
    "cnndm": {"speculative": (4.71, 5), "lookahead": (1.70, 0), "ouroboros": (7.46, 10)},
    "wmt16_deen": {"speculative": (2.41, 2), "lookahead": (1.37, 0), "ouroboros": (4.05, 5)},
}
"""Tokens per target pass and draft length."""

Speeds = dict[str, list[float]]
Cost = Callable[[int], float]


def free(rows: int) -> float:
    """The cost of a pass whose rows cost nothing."""
    return 1.0


def speedup(run: Mapping[str, Any], ratio: float, target: Cost, draft: Cost) -> float:
    """The speed-up of one contender over plain decoding, whose tokens cost 1 each."""
    spent = sum(passes * target(int(rows)) for rows, passes in run["widths"].items())
    drafting = sum(passes * draft(int(rows)) for rows, passes in run["draft_widths"].items())
    return float(run["tokens"] / (spent + ratio * drafting))


def simulated(runs: Mapping[str, Mapping[str, Any]], target: Cost, draft: Cost) -> Speeds:
    """Speed-ups by method, at every ratio."""
    return {
        method: [
            max(speedup(runs[name], ratio, target, draft) for name in names) for ratio in RATIOS
        ]
        for method, names in FAMILIES.items()
    }


def of_paper(efficiencies: Mapping[str, tuple[float, int]]) -> Speeds:
    """Speed-ups with the paper's acceptance on one task, at every ratio."""
    phrases, _ = efficiencies["lookahead"]
    found = {}
    for method, (gained, length) in efficiencies.items():
        passes = length / phrases if method == "ouroboros" else length
        found[method] = [gained / (1 + ratio * passes) for ratio in RATIOS]
    return found


def mean_of(all_speeds: Sequence[Speeds]) -> Speeds:
    """The geometric mean over tasks."""
    return {
        method: [
            exp(fmean(log(speeds[method][place]) for speeds in all_speeds))
            for place in range(len(RATIOS))
        ]
        for method in FAMILIES
    }


def ahead(first: Sequence[float], second: Sequence[float]) -> list[tuple[float, float]]:
    """Ranges of ratios, ends included, where the first is faster."""
    stretches: list[tuple[float, float]] = []
    previous = False
    for ratio, one, other in zip(RATIOS, first, second):
        if one > other:
            begin = stretches.pop()[0] if previous else ratio
            stretches.append((begin, ratio))
        previous = one > other
    return stretches


def crossings(speeds: Speeds) -> dict[str, list[tuple[float, float]]]:
    """The ranges of ratios where one method beats another."""
    plain = [1.0] * len(RATIOS)
    return {
        "ouroboros over speculative": ahead(speeds["ouroboros"], speeds["speculative"]),
        "ouroboros over lookahead": ahead(speeds["ouroboros"], speeds["lookahead"]),
        "ouroboros over plain": ahead(speeds["ouroboros"], plain),
        "speculative over plain": ahead(speeds["speculative"], plain),
    }


def simulate(
    contenders: Sequence[Mapping[str, Any]], target: CostCurve, draft: CostCurve
) -> list[dict[str, Any]]:
    """All texts together and each task, with rows free and at measured cost; then the paper's."""
    runs = {one["name"]: one for one in contenders}
    found = []
    for rows, costs in (("free", (free, free)), ("measured", (target.relative, draft.relative))):
        for task in (None, *runs["plain"]["tasks"]):
            own = {name: one if task is None else one["tasks"][task] for name, one in runs.items()}
            speeds = simulated(own, *costs)
            found.append({"acceptance": "measured", "rows": rows, "task": task or "all", **speeds})
    theirs = {task: of_paper(efficiencies) for task, efficiencies in PAPER.items()}
    for task, speeds in {"all": mean_of(list(theirs.values())), **theirs}.items():
        found.append({"acceptance": "paper", "rows": "free", "task": task, **speeds})
    return [{**one, "ahead": crossings(one)} for one in found]


def picture(found: Sequence[Mapping[str, Any]], ratio: float) -> Figure:
    """Plot three panels over all tasks: rows free, rows as measured, the paper's acceptance."""
    titles = ["measured acceptance, rows free", "measured acceptance, rows as here"]
    titles += ["the paper's acceptance, rows free"]
    figure = Figure((11.0, 3.8), layout="constrained")
    panels = figure.subplots(1, 3)
    for axes, title, one in zip(panels, titles, [one for one in found if one["task"] == "all"]):
        axes.axhline(1, color="0.7", linewidth=1, linestyle="--", label="plain decoding")
        for place, method in enumerate(FAMILIES):
            axes.plot(RATIOS, one[method], color=f"C{place}", label=method)
        if one["acceptance"] == "measured":
            axes.axvline(ratio, color="0.5", linewidth=1, linestyle=":", label="the ratio here")
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("draft pass over target pass, one row each")
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", alpha=0.3)
    panels[0].set_ylabel("over plain decoding")
    panels[0].legend(frameon=False, fontsize=8)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/ouroboros"))
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--plot", type=Path, help="without its ending: .png and .svg are written")
    options = parser.parse_args()
    studies = {
        name: json.loads((options.results / f"{name}-{options.model}.json").read_text("utf-8"))
        for name in ("fixed", "costs")
    }
    curves = [
        CostCurve.from_records(studies["costs"][f"{name}_curve"]) for name in ("target", "draft")
    ]
    found = simulate(studies["fixed"]["contenders"], *curves)
    ratio = studies["costs"]["cost_ratio"]
    report = {
        "command": shown_command(),
        "model": options.model,
        "machine": studies["fixed"]["machine"],
        "cost_ratio": ratio,
        "ratios": RATIOS,
        "simulations": [
            {**one, **{method: [round(speed, 4) for speed in one[method]] for method in FAMILIES}}
            for one in found
        ],
    }
    path = options.results / f"simulation-{options.model}.json"
    path.write_text(json.dumps(report) + "\n", encoding="utf-8")
    if options.plot is not None:
        options.plot.parent.mkdir(parents=True, exist_ok=True)
        for ending in ("png", "svg"):
            file = options.plot.with_suffix(f".{ending}")
            metadata = {"Date": None} if ending == "svg" else None
            picture(found, ratio).savefig(file, dpi=120, metadata=metadata)


if __name__ == "__main__":
    main()
