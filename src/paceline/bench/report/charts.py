"""The plots of a run and of a cost curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.bench.metrics import Group, MethodSummary
from paceline.bench.report import words
from paceline.bench.report.blocks import Plot
from paceline.bench.report.colours import INK, KINDS, OWN_HUES, PART_HUES, kind_of, method_hues
from paceline.bench.report.drawing import chart, drawable, drawn, folded, grid
from paceline.bench.report.folder import Tuning
from paceline.bench.report.tables import ALL_PARTS, guessing, milliseconds_per_token
from paceline.bench.trial import PLAIN

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_AXIS = 60
_ROW, _LINE = 28, 15
_BAR = 11
_MOST_GAINED = 24
_MARKERS, _DASHES = "osD^vP*X", ("-", "--", ":", "-.")
_HATCHES = ("", "///", "...", "xxx", "---")


def speedups(name: str, groups: Sequence[Group]) -> list[Plot]:
    """Grouped bars per task; the first group is overall."""
    methods = [method for method in groups[0].methods if method != PLAIN]
    if not methods:
        return []
    hues = method_hues(methods)
    height = _AXIS + len(groups) * (len(methods) * _BAR + 16)
    plot = Plot(name, "Speed-up by task and method; the line at 1 is plain decoding.", wide=True)
    with chart(plot, height, "speed-up over plain decoding, with 95 % interval") as axes:
        for place, method in enumerate(methods):
            offset = (place - (len(methods) - 1) / 2) * 0.84 / len(methods)
            found = {
                row + offset: group.methods[method]
                for row, group in enumerate(groups)
                if method in group.methods
            }
            look = {"color": hues[method], "hatch": _hatch(method, hues), "label": folded(method)}
            _bars(axes, found, 0.84 / len(methods), look)
        axes.axvline(1.0, color=INK, linewidth=1)
        _name_rows(axes, [f"{group.name} ({group.texts})" for group in groups])
    return [plot]


def _hatch(method: str, hues: Mapping[str, str]) -> str:
    """Another pattern for each of the methods that have the same hue."""
    alike = [name for name, hue in hues.items() if hue == hues[method]]
    return _HATCHES[alike.index(method) % len(_HATCHES)]


def _bars(
    axes: Axes, found: dict[float, MethodSummary], height: float, look: Mapping[str, Any]
) -> None:
    axes.barh(
        list(found),
        [method.speedup for method in found.values()],
        height=height * 0.88,
        alpha=0.75,  # so that the intervals on top stay visible
        **look,
    )
    for place, method in found.items():
        if words.interval(method):
            axes.plot(method.interval, (place, place), color=INK, linewidth=1.1, alpha=0.75)


def side_by_side(name: str, group: Group) -> Plot:
    """Tokens per second of every method over all texts."""
    methods = list(group.methods)
    plot = Plot(name, "Tokens per second over all texts.")
    with chart(plot, _height(methods), "tokens per second, including the prompt") as axes:
        for label, hues in KINDS.items():
            rows = [row for row, method in enumerate(methods) if kind_of(method) == label]
            rates = [group.methods[methods[row]].tokens_per_second for row in rows]
            if rows:
                bars = axes.barh(rows, rates, height=0.66, color=hues[0], label=label)
                axes.bar_label(bars, [words.rate(value) for value in rates], padding=4)
        _name_rows(axes, methods)
        axes.margins(x=0.12)
    return plot


def time(name: str, group: Group) -> Plot:
    """Time by part: stacked bars per method."""
    found = milliseconds_per_token(group)
    methods = list(found)
    plot = Plot(name, "Where the time goes: milliseconds per token by part.")
    with chart(plot, _height(methods), "milliseconds per token") as axes:
        left = [0.0] * len(methods)
        for part, hue in zip(ALL_PARTS, PART_HUES):
            widths = [found[method][part] for method in methods]
            axes.barh(range(len(methods)), widths, left=left, height=0.66, color=hue, label=part)
            left = [begin + width for begin, width in zip(left, widths)]
        _name_rows(axes, methods)
    return plot


def _height(methods: Sequence[str]) -> int:
    lines = max(len(folded(method).split("\n")) for method in methods)
    return _AXIS + len(methods) * max(_ROW, _LINE * lines)


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), [folded(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)


def acceptance(name: str, group: Group) -> Plot:
    """Share of guesses accepted, by position in the chain; some methods must have guessed."""
    hues, deepest = method_hues(group.methods), 1
    plot = Plot(name, "Guesses accepted, by position, in rounds that guessed that far ahead.")
    with chart(plot, 300, "position of the guess", "accepted, %") as axes:
        for place, one in enumerate(guessing(group)):
            shares = [100 * share for share in one.stats.acceptance_by_position]
            deepest = max(deepest, len(shares))
            _line(axes, dict(enumerate(shares, 1)), place, hues[one.method], folded(one.method))
        axes.set_ylim(0, 103)
        _whole_ticks(axes, deepest)
    return plot


def gains(name: str, group: Group) -> Plot:
    """Tokens gained per round: one histogram per method that guessed, on a shared axis."""
    found, hues = guessing(group), method_hues(group.methods)
    plot = Plot(name, "Tokens gained per round: share of rounds.")
    with drawn(plot, _AXIS + 82 * len(found)) as figure:
        panels = figure.subplots(len(found), 1, sharex=True, squeeze=False)[:, 0]
        highest = 0.0
        for axes, one in zip(panels, found):
            histogram = one.stats.acceptance_histogram
            shares = dict.fromkeys(range(1, min(max(histogram), _MOST_GAINED) + 1), 0.0)
            for gained, rounds in histogram.items():
                shares[min(gained, _MOST_GAINED)] += 100 * rounds / histogram.total()
            axes.bar(list(shares), list(shares.values()), width=0.82, color=hues[one.method])
            axes.set_title(drawable(one.method), loc="right", fontsize=11.5, y=0.72)
            highest = max(highest, *shares.values())
            grid(axes, "y")
        longest = max(max(one.stats.acceptance_histogram) for one in found)
        for axes in panels:
            axes.set_ylim(0, 1.1 * highest)
        _whole_ticks(panels[-1], min(longest, _MOST_GAINED))
        more = f" ({_MOST_GAINED}: or more)" if longest > _MOST_GAINED else ""
        panels[-1].set_xlabel(f"tokens gained in a round{more}")
        figure.supylabel("rounds, %", fontsize=11.5)
    return plot


def cost(name: str, tuning: Tuning) -> Plot:
    """Milliseconds of a pass by width, with the floor that memory sets."""
    curve = tuning.curve
    floor = f"floor: {tuning.floor:.2f} ms at {tuning.gb_per_s:.1f} GB/s"
    plot = Plot(name, "Cost of a pass by its width, and the floor that memory sets.")
    with chart(plot, 300, "width of the pass, in tokens", "milliseconds") as axes:
        for place, context in enumerate(curve.contexts):
            measured = {
                point.width: point.milliseconds
                for point in curve.points
                if point.context == context
            }
            hue, label = OWN_HUES[place % len(OWN_HUES)], f"{context:,} tokens in the cache"
            _line(axes, dict(sorted(measured.items())), place, hue, label)
        axes.axhline(tuning.floor, color=INK, linestyle=(0, (5, 4)), linewidth=1.2, label=floor)
        axes.set_xscale("log", base=2)
        powers = [2**power for power in range(max(curve.widths).bit_length())]
        axes.set_xticks(powers, [str(power) for power in powers])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
    return plot


def _line(axes: Axes, points: Mapping[int, float], place: int, hue: str, label: str) -> None:
    """Draw one of several lines, distinguished by hue, marker and dashes."""
    axes.plot(
        list(points),
        list(points.values()),
        color=hue,
        marker=_MARKERS[place % len(_MARKERS)],
        linestyle=_DASHES[place // len(_MARKERS) % len(_DASHES)],
        markersize=5,
        linewidth=1.8,
        label=label,
    )


def _whole_ticks(axes: Axes, last: int) -> None:
    axes.set_xticks(range(1, last + 1, -(-last // 16)))
