"""Simulate the speed-up of Ouroboros over plain decoding by the cost of a draft pass.

    python benchmarks/ouroboros_simulation.py --model smollm2-135m --plot docs/images/ouroboros-simulation

It shows at which cost Ouroboros starts to pay, with the measured acceptance and with the paper's.
--plot names a picture without its ending: .png and .svg are written.

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

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from common import options, shown_command
from paceline.planning.cost_curve import CostCurve

RATIOS = tuple(step / 100 for step in range(2, 71))
FAMILIES = {
    "lookahead": ("lookahead",),
    "speculative": ("speculative", "speculative, 2", "speculative, 8"),
    "ouroboros": ("+ history", "ouroboros, 2", "ouroboros, 8"),
}
"""Method -> contenders, of which the best counts."""
PAIRS = (("ouroboros", "speculative"), ("ouroboros", "lookahead"), ("ouroboros", "plain"), ("speculative", "plain"))  # fmt: skip
PAPERS = Path(__file__).parent.parent / "tools/papers.json"

Speeds = dict[str, Any]
"""Method -> speed-ups over plain decoding, an array with one for each ratio."""
Cost = Callable[[int], float]


def free(rows: int) -> float:
    """The cost of a pass whose rows cost nothing."""
    return 1.0


def speedup(run: Mapping[str, Any], ratio: Any, target: Cost, draft: Cost) -> Any:
    """The speed-up of one contender over plain decoding, whose tokens cost 1 each; for an array of
    ratios, that of each."""
    spent = sum(passes * target(int(rows)) for rows, passes in run["widths"].items())
    drafting = sum(passes * draft(int(rows)) for rows, passes in run["draft_widths"].items())
    return run["tokens"] / (spent + ratio * drafting)


def simulated(runs: Mapping[str, Mapping[str, Any]], target: Cost, draft: Cost) -> Speeds:
    """From the passes of contenders."""
    ratios = np.array(RATIOS)
    return {
        method: np.max([speedup(runs[name], ratios, target, draft) for name in names], axis=0)
        for method, names in FAMILIES.items()
    }


def of_paper() -> dict[str, Speeds]:
    """By task, with the paper's acceptance; "all" is the geometric mean."""
    tables = json.loads(PAPERS.read_text(encoding="utf-8"))["ouroboros"]["tables"]
    found: dict[str, Speeds] = {}
    for task, (speculative, lookahead, ouroboros) in tables["12"]["rows"].items():
        lengths = tables["11"]["rows"][task]
        found[task] = {
            "lookahead": np.full(len(RATIOS), lookahead),
            "speculative": speculative / (1 + np.array(RATIOS) * lengths[0]),
            "ouroboros": ouroboros / (1 + np.array(RATIOS) * (lengths[1] / lookahead)),
        }
    tasks = found.values()
    mean = {
        each: np.exp(np.mean([np.log(one[each]) for one in tasks], axis=0)) for each in FAMILIES
    }
    return {"all": mean, **found}


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


def simulate(
    contenders: Sequence[Mapping[str, Any]], target: CostCurve, draft: CostCurve
) -> list[dict[str, Any]]:
    """All texts together and each task, with rows free and at measured cost; then the paper's."""
    runs = {one["name"]: one for one in contenders}
    tasks = {"all": runs}
    for task in runs["plain"]["tasks"]:
        tasks[task] = {name: one["tasks"][task] for name, one in runs.items()}
    every = {
        ("measured", "free"): {key: simulated(own, free, free) for key, own in tasks.items()},
        ("measured", "measured"): {
            key: simulated(own, target.relative, draft.relative) for key, own in tasks.items()
        },
        ("paper", "free"): of_paper(),
    }
    found = []
    for (acceptance, rows), by_task in every.items():
        for task, speeds in by_task.items():
            known = {**speeds, "plain": np.ones(len(RATIOS))}
            ranges = {f"{a} over {b}": ahead(known[a], known[b]) for a, b in PAIRS}
            about = {"acceptance": acceptance, "rows": rows, "task": task}
            found.append({**about, **speeds, "ahead": ranges})
    return found


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
    given = options(
        __doc__,
        results=Path("benchmarks/results/ouroboros"),
        model="smollm2-135m",
        plot=Path | None,
    )
    fixed, costs = (
        json.loads((given.results / f"{name}-{given.model}.json").read_text("utf-8"))
        for name in ("fixed", "costs")
    )
    curves = [CostCurve.from_records(costs[f"{name}_curve"]) for name in ("target", "draft")]
    found = simulate(fixed["contenders"], *curves)
    report = {
        "command": shown_command(),
        "model": given.model,
        "machine": fixed["machine"],
        "cost_ratio": costs["cost_ratio"],
        "ratios": RATIOS,
        "simulations": [
            {**one, **{method: [round(speed, 4) for speed in one[method].tolist()] for method in FAMILIES}}
            for one in found
        ],
    }  # fmt: skip
    path = given.results / f"simulation-{given.model}.json"
    path.write_text(json.dumps(report) + "\n", encoding="utf-8")
    if given.plot is not None:
        given.plot.parent.mkdir(parents=True, exist_ok=True)
        for ending, metadata in (("png", None), ("svg", {"Date": None})):
            file = given.plot.with_suffix(f".{ending}")
            picture(found, costs["cost_ratio"]).savefig(file, dpi=120, metadata=metadata)


if __name__ == "__main__":
    main()
