"""Pictures of dynamic sparse trees, as text and as a figure, and of what their widths promise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from statistics import median
from typing import TYPE_CHECKING

from paceline.planning.ppd.dynamic_tree import DynamicTree, StateTree
from paceline.planning.ppd.tree_search import FittedTree, fastest
from paceline.tree import ROOT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SELDOM = 0.0005  # states with a smaller share of the rounds are not shown
_PANEL_INCHES = (9.0, 2.8)
_SURVEY_INCHES = (7.0, 4.2)


def tree_text(tree: DynamicTree) -> str:
    """A text picture of every state that occurs, most frequent first.

        state 1, 100% of the rounds: 2 guesses, 2 prompt tokens, 6 rows, 0.75 accepted
        root +1
        ├── 1 50.0% +1
        └── 2 25.0% +1

    A node shows its rank among its siblings, from 1, how likely it is to be accepted, and the
    number of prompt tokens after it. Prompt tokens after guesses are counted; rows are all rows.
    """
    pictures = []
    for state in _occurring(tree):
        own = tree.states[state]
        lines = [_title(tree, state), f"root +{own.root_prompts}", *_branches(own, ROOT, "")]
        pictures.append("\n".join(lines))
    return "\n\n".join(pictures)


def tree_figure(tree: DynamicTree) -> Figure:
    """The same as a matplotlib figure, one panel per state: `tree_figure(tree).savefig(path)`.

    Likelier nodes are larger; the colour shows the number of prompt tokens.
    """
    states = _occurring(tree)
    width, height = _PANEL_INCHES
    figure = _new_figure(width, height * len(states))
    panels = figure.subplots(len(states), 1, squeeze=False)[:, 0]
    for panel, state in zip(panels, states):
        panel.set_title(_title(tree, state), fontsize="medium")
        _draw(panel, tree.states[state])
    return figure


def survey_figure(
    survey: Sequence[FittedTree], measured: Mapping[int, Sequence[float]] | None = None
) -> Figure:
    """Plot the speed-ups over plain decoding that widths, in rows, promise and have brought (PPD,
    figure 6.6). measured: width -> one per repetition; drawn as their median and range."""
    figure = _new_figure(*_SURVEY_INCHES)
    axes = figure.subplots()
    axes.axhline(1, color="0.7", linewidth=1, linestyle="--", label="plain decoding")
    tried, gained = [one.width for one in survey], [one.tree.tokens_per_pass for one in survey]
    axes.plot(tried, [one.speedup for one in survey], "o-", label="predicted")
    axes.plot(tried, gained, ":", color="0.5", label="tokens per pass")
    best = fastest(survey)
    if best is not None:
        axes.axvline(best.width, color="C0", linewidth=6, alpha=0.15, zorder=0)
    if measured:
        widths = sorted(measured)
        axes.plot(widths, [median(measured[width]) for width in widths], "s", label="measured")
        for width in widths:
            low, high = min(measured[width]), max(measured[width])
            axes.plot([width, width], [low, high], color="C1", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_xticks(tried, [str(width) for width in tried])
    axes.minorticks_off()
    axes.set_xlabel("rows of a pass: root, guesses and prompt tokens")
    axes.set_ylabel("speed-up over plain decoding")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(frameon=False)
    return figure


def _new_figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure((width, height), layout="constrained")


def _occurring(tree: DynamicTree) -> list[int]:
    shares = tree.steady_state
    return sorted(
        (state for state in range(len(shares)) if shares[state] >= _SELDOM),
        key=lambda state: -shares[state],
    )


def _title(tree: DynamicTree, state: int) -> str:
    own = tree.states[state]
    return (
        f"state {state}, {tree.steady_state[state]:.0%} of the rounds: "
        f"{len(own.candidates)} guesses, {sum(own.prompts)} prompt tokens, {own.width} rows, "
        f"{own.candidates.expected:.2f} accepted"
    )


def _children(state: StateTree, parent: int) -> list[int]:
    candidates = state.candidates
    found = [node for node, above in enumerate(candidates.parents) if above == parent]
    return sorted(found, key=lambda node: candidates.paths[node])


def _branches(state: StateTree, parent: int, indent: str) -> Iterator[str]:
    """The lines of all descendants of `parent`."""
    children = _children(state, parent)
    for node in children:
        is_last = node == children[-1]
        rank, chance = state.candidates.paths[node][-1] + 1, state.candidates.path_chances[node]
        yield f"{indent}{'└' if is_last else '├'}── {rank} {chance:.1%} +{state.prompts[node]}"
        yield from _branches(state, node, indent + ("    " if is_last else "│   "))


def _draw(panel: Axes, state: StateTree) -> None:
    candidates = state.candidates
    across = _places(state)
    down = {ROOT: 0} | {node: -len(path) for node, path in enumerate(candidates.paths)}
    for edge in enumerate(candidates.parents):
        ends = [across[node] for node in edge], [down[node] for node in edge]
        panel.plot(*ends, color="0.8", linewidth=0.8, zorder=1)
    prompts = {ROOT: state.root_prompts} | dict(enumerate(state.prompts))
    path_chances = {ROOT: 1.0} | dict(enumerate(candidates.path_chances))
    for number in sorted(set(prompts.values())):
        nodes = [node for node, own in prompts.items() if own == number]
        panel.scatter(
            [across[node] for node in nodes],
            [down[node] for node in nodes],
            s=[20 + 200 * path_chances[node] for node in nodes],
            color=f"C{number}",
            label=f"{number} prompt tokens",
            zorder=2,
        )
    panel.set_axis_off()
    panel.legend(loc="upper right", fontsize="small", frameon=False, markerscale=0.5)


def _places(state: StateTree) -> dict[int, float]:
    """Horizontal positions of all nodes and ROOT: leaves in a row, others above their children."""
    places: dict[int, float] = {}
    leaves = count()

    def put(node: int) -> float:
        below = [put(child) for child in _children(state, node)]
        places[node] = (below[0] + below[-1]) / 2 if below else float(next(leaves))
        return places[node]

    put(ROOT)
    return places
