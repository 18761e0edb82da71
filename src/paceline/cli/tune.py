"""`paceline tune`: what a pass costs on this machine, by width, and which trees or settings pay."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli import common
from paceline.cli.bench import shared
from paceline.cli.flags import option
from paceline.cli.groups import Choice, JsonOption, Placement, PromptFile
from paceline.errors import UsageError, writable
from paceline.planning.sizing import best_chain
from paceline.tables import Table, count

if TYPE_CHECKING:
    from paceline.cli.tune_studies import SettingsStudy, TreeStudy
    from paceline.planning.cost_curve import CostCurve
    from paceline.planning.curve_store import CurveKey
    from paceline.planning.measure import Floor
    from paceline.session import Session

_REPEATS = 7
_TOKENS = 128
_ON_TEXTS = "--prompt-file, --limit and --max-new-tokens"
_EXTRAS = (0.10, 0.25, 0.50)
_ACCEPTANCES = (0.3, 0.6, 0.9)
_BAR_CELLS = 24
_EIGHTHS = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True)
class _Tuned(Choice):
    method: str | None = option(None, "Find its best trees or settings, e.g. ppd, ouroboros.")

    @property
    def wanted(self) -> str | None:
        """The method, None if only passes are measured."""
        return self.method if self.draft_model is None else self.chosen


@dataclass(frozen=True)
class _Tried(PromptFile):
    """What the method is tried on, and what is shown of it."""

    max_new_tokens: int | None = option(
        None, "Most new tokens, at least 1; default: 128.", "--max-new-tokens", "-n"
    )
    repeats: int | None = option(
        None, "Passes per width (default: 7), and trials per text (7 for trees, else 2).", min=1
    )
    verify: bool = option(False, "Also decode with trees around the best one.")
    plots: Path | None = option(None, "Folder for plots of the widths and the tree.", "--plot")

    @property
    def decoding(self) -> bool:
        """Whether there is an option that matters only to texts."""
        return (self.prompt_file, self.limit, self.max_new_tokens) != (None, None, None)

    def options(self) -> dict[str, Any]:
        """For requests, checked."""
        tokens = _TOKENS if self.max_new_tokens is None else self.max_new_tokens
        return common.request_options(max_new_tokens=tokens)


def tune(
    *, choice: _Tuned, tried: _Tried, placement: Placement, json_file: JsonOption = None
) -> None:
    """Measure what a pass costs on this machine, by the number of tokens it scores.

    Shows the curve, how near plain decoding comes to what memory allows, and how large a tree may
    be at little more than the cost of one token. The curve is kept in the cache folder: from now on
    it plans the trees of requests that set no budget.

    With --method ppd: the expected gain of its trees by width, and the best one as a picture; with
    --verify, what those around it gain on prompts. With --method ouroboros, speculative or
    lookahead: the best of its settings, tried on prompts. By default these are the bundled ones.
    """
    common.check_writable(json_file, tried)
    method, model = choice.wanted, choice.model
    options = tried.options()
    study = _study(method, tried)
    prompts = tried.listed()
    session = common.open_to_measure(model, method or "plain", measure=False, **vars(placement))
    repeats = tried.repeats or _REPEATS
    from paceline.planning.curve_store import save_curve

    key, curve, floor = _measure(session, repeats)
    report = _report(session, model, key, repeats, curve, floor)
    try:
        common.print_table(_table(curve, floor, f"{model}, {_setting(key)}"))
        common.print_lines(_summary(curve, floor))
        if study is not None:
            session.use_curve(curve)  # trials are planned by it, not by a stored one
            study.run(shared.Tryout(session, prompts, options, tried.repeats))
            report |= study.as_json()
            common.print_table(study.table())
            common.print_lines(study.lines())
    finally:  # also if whoever reads the tables has enough, and each even if the other fails
        try:
            common.write_json(json_file, report)
        finally:
            path = save_curve(key, curve)
    common.print_lines([f"stored in {path}"])
    if tried.plots is not None:
        from paceline.cli.tune_studies import TreeStudy

        if isinstance(study, TreeStudy):
            study.save_plots(tried.plots)


@common.interruptible()
def _study(method: str | None, tried: _Tried) -> SettingsStudy | TreeStudy | None:
    """What there is to tune, None without a method; raises UsageError if the method has nothing to
    tune, or for options that do not go with it."""
    from paceline.bench.ablations import check_matplotlib
    from paceline.cli.tune_studies import SettingsStudy, TreeStudy
    from paceline.drafters import open_settings, shapes_trees

    if method is None:
        if tried.verify or tried.plots or tried.decoding:
            raise UsageError(f"--verify, --plot, {_ON_TEXTS} need a method: add --method ppd")
        return None
    if shapes_trees(method):
        if tried.plots is not None:
            check_matplotlib()
            with writable(tried.plots):
                tried.plots.mkdir(parents=True, exist_ok=True)
        if tried.decoding and not tried.verify:
            raise UsageError(f"{_ON_TEXTS} need texts to decode: add --verify")
        return TreeStudy(method, tried.verify)
    if open_settings(method)[1]:
        if tried.verify or tried.plots:
            raise UsageError(
                f"{method} is tuned by its settings, which are always tried on prompts and have no "
                "plots: leave out --verify and --plot"
            )
        return SettingsStudy(method)
    raise UsageError(
        f"there is nothing to tune for {method}: every setting is given, or its trees are sized while "
        "it decodes; leave out --method to measure what passes cost"
    )


def _measure(session: Session, repeats: int) -> tuple[CurveKey, CostCurve, Floor]:
    from paceline.planning.curve_store import curve_key
    from paceline.planning.measure import measure_curve, measure_floor

    target = session.target
    with common.progress("measuring") as bars:
        task = bars.add_task("", total=None)
        curve = measure_curve(
            target, repeats=repeats, on_pass=lambda most: bars.update(task, advance=1, total=most)
        )
    return curve_key(target, session.fingerprint), curve, measure_floor(target)


def _setting(key: CurveKey) -> str:
    """What was measured, e.g. "float32, packed weights, cpu (AMD EPYC), 2 threads"."""
    place = f"{key.device} ({key.processor})" if key.device == "cpu" else key.device
    return f"{key.dtype}, {key.weights} weights, {place}, {count(key.threads, 'thread')}"


def _table(curve: CostCurve, floor: Floor, title: str) -> Table:
    """The floor, then one row per width; ratios and bars are those of the first context."""
    longest = max(curve.cost(width) for width in curve.widths)
    contexts, least = curve.contexts, floor.milliseconds
    lowest = ["floor", _bar(least / longest), *[f"{least:.2f}"] * len(contexts)]
    rows = [
        [
            f"{width:>5}",
            _bar(curve.cost(width) / longest),
            *(f"{curve.cost(width, context):.2f}" for context in contexts),
            f"{curve.relative(width):.2f}x",
        ]
        for width in curve.widths
    ]
    headings = ["width", f"at {contexts[0]}", *(f"ms at {each}" for each in contexts)]
    every = [[*lowest, f"{floor.share(curve):.2f}x"], *rows]
    return Table(title, [*headings, "of one token"], every, left=2)


def _bar(share: float) -> str:
    """A bar of this share of the longest one, to an eighth of a cell."""
    eighths = min(round(share * _BAR_CELLS * 8), _BAR_CELLS * 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def _summary(curve: CostCurve, floor: Floor) -> list[str]:
    context = curve.contexts[0]
    return [
        f"memory bandwidth, measured just now: {floor.gb_per_s:.1f} GB/s",
        f"floor: a pass reads {floor.weight_bytes / 1e6:,.1f} MB of weights, which takes at least "
        f"{floor.milliseconds:.2f} ms",
        f"plain decoding: {curve.cost(1):.2f} ms per token at context {context}, "
        f"{floor.share(curve):.0%} of the speed the floor allows",
        *(
            f"at most {extra:.0%} slower than one token: {count(curve.widest(extra), 'row')}, "
            f"a tree of {count(curve.widest(extra) - 1, 'guess')}"
            for extra in _EXTRAS
        ),
        *(
            f"best chain if {share:.0%} of guesses are right: "
            f"{count(best_chain(curve, share), 'guess')}"
            for share in _ACCEPTANCES
        ),
    ]


def _report(
    session: Session, model: str, key: CurveKey, repeats: int, curve: CostCurve, floor: Floor
) -> dict[str, Any]:
    return common.circumstances(session, model) | {
        "dtype": key.dtype,
        "weights": key.weights,
        "weight_bytes": floor.weight_bytes,
        "repeats": repeats,
        "curve": curve.to_records(),
        "bandwidth_gb_per_s": floor.gb_per_s,
        "floor_milliseconds": floor.milliseconds,
        "floor_share": floor.share(curve),
        "widest": {f"{extra:.2f}": curve.widest(extra) for extra in _EXTRAS},
        "planned": {f"{share:.1f}": best_chain(curve, share) for share in _ACCEPTANCES},
    }
