"""Builds a report from a folder: one chapter per file."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from paceline.bench import ablations
from paceline.bench.ablations import ABLATIONS
from paceline.bench.report import charts, listings, sentences, tables, words
from paceline.bench.report.blocks import PICTURE_TYPES, Block, Chapter, Document, Picture, Section
from paceline.bench.report.folder import Folder, Run, Tuning
from paceline.bench.results import object_in
from paceline.tables import Table, count

_WORDS = {
    "speed-up": "tokens per second relative to plain decoding of the same texts; the time of a "
    "text is the median of its trials, from the token ids of the prompt to those of the output",
    "interval": "95 % confidence interval of the speed-up, from resampling prompts in pairs; it "
    "covers differences between texts, not between machines; a single prompt has none",
    "after the prompt": "the speed-up without the first pass, which reads the prompt",
    "ratio of means": "mean speed of texts divided by plain decoding's, as in Spec-Bench",
    "acceptance length": "tokens gained per round, including the one that needs no guess",
    "draft hit ratio": "share of guessed tokens that were accepted",
    "memory over plain": "what a method keeps loaded and a text takes, minus plain decoding's: the median",
    "in loops": "share of tokens inside a run of twenty that occurs more than once in its text; a "
    "text loops if this is a fifth or more in plain decoding's output",
    "same text": "whether every output is plain decoding's, token for token",
    "lossy": "guesses that are likely enough were accepted (typical acceptance): texts differ from "
    "plain decoding's by design and are not compared with them",
    "gap": "the target's logit of plain decoding's token minus that of the other token, where the "
    "texts start to differ",
    "rest": "time of a trial that no part accounts for; for other software only passes are seen, "
    "so everything else counts here",
}


def document(folder: Folder) -> Document:
    """Build the whole report."""
    models = [run.asked.get("model") for run in folder.runs]
    chapters = [
        _run(run, [each for each in folder.tunings if each.model == model])
        for run, model in zip(folder.runs, models)
    ]
    chapters += [_ablation(ablation) for ablation in folder.ablations]
    for each in folder.tunings:
        if each.model not in models:
            title, path = f"{each.model.get('name', each.path.stem)}, cost", each.path
            section = Section("Cost of a pass", _cost(each))
            chapters.append(Chapter(f"cost-{_slug(path)}", title, path.name, "", [section]))
    files = len(folder.runs) + len(folder.ablations) + len(folder.tunings)
    return Document(
        "What was measured",
        f"Every sentence, table and plot here is computed from {count(files, 'result file')}.",
        chapters,
        Table("", ["word", "meaning"], [*_WORDS.items()], left=2),
    )


def _run(run: Run, tunings: Sequence[Tuning]) -> Chapter:
    name = _slug(run.path)
    findings: list[Block] = [sentences.basis(run), sentences.verdicts(run), *sentences.limits(run)]
    sections = [Section("Findings", findings)]
    if run.summary.overall.methods:
        sections += _numbers(run, name)
    sections += [
        *(Section("Cost of a pass", _cost(tuning)) for tuning in tunings),
        Section("Differences, failures, texts left out", listings.exceptions(run)),
        Section("How it was measured", listings.circumstances(run)),
    ]
    title = f"{run.model}, simulated" if run.simulated else run.model
    return Chapter(name, title, run.path.name, _machine(run), sections)


def _numbers(run: Run, name: str) -> list[Section]:
    overall, twice = run.summary.overall, partial(tables.twice, run.summary)
    speedups = charts.speedups(f"{name}-speed-up", [overall, *run.summary.groups])
    acceptance: list[Block] = ["No method guessed anything."]
    if tables.guessing(overall):
        acceptance = [
            charts.acceptance(f"{name}-acceptance", overall),
            charts.gains(f"{name}-gains", overall),
            *twice(tables.acceptance),
            *twice(tables.positions),
        ]
    by_source = twice(tables.sources)
    return [
        Section("All methods", twice(tables.overall)),
        Section("By task", [*speedups, *twice(tables.tasks)]),
        Section(
            "Side by side",
            [
                charts.side_by_side(f"{name}-side-by-side", overall),
                charts.time(f"{name}-time", overall),
                *twice(tables.time),
            ],
        ),
        Section("Acceptance", acceptance),
        *([Section("Sources", by_source)] if by_source else []),
    ]


def _machine(run: Run) -> str:
    machine = object_in(run.asked, "machine")
    threads = count(machine["threads"], "thread") if "threads" in machine else None
    parts = [machine.get("processor"), threads, machine.get("device")]
    return ", ".join(str(part) for part in parts if part)


def _cost(tuning: Tuning) -> list[Block]:
    curve = tuning.curve
    headings = ["width", *(f"ms at {context:,}" for context in curve.contexts), "of one token"]
    rows = [
        [
            str(width),
            *(f"{curve.cost(width, context):.2f}" for context in curve.contexts),
            words.times(curve.relative(width)),
        ]
        for width in curve.widths
    ]
    return [
        charts.cost(f"{_slug(tuning.path)}-cost", tuning),
        Table(
            f"Milliseconds of a pass, by tokens in the cache ({tuning.path.name})",
            headings,
            rows,
            note=f"Reading all weights once takes {tuning.floor:.2f} ms at {tuning.gb_per_s:.1f} "
            f"GB/s, the floor. Plain decoding reaches {tuning.share:.0%} of the speed "
            "that it allows.",
        ),
    ]


def _ablation(run: Run) -> Chapter:
    """Its tables, and its picture, drawn beside its results."""
    pictures = [each for each in map(run.path.with_suffix, PICTURE_TYPES) if each.is_file()]
    overall, about = run.summary.overall, ABLATIONS.get(str(run.asked.get("ablation")))
    blocks: list[Block] = [Picture(each) for each in pictures[:1]]
    blocks += ablations.tables([*overall.methods, *overall.failed], run.summary)
    shown = Section("Tables and plot", [*blocks, *ablations.left_out(run.summary)])
    title = about.title if about else ""
    return Chapter(_slug(run.path), run.path.stem, run.path.name, title, [shown])


def _slug(path: Path) -> str:
    """Make a name fit for ids and file names; different names stay different."""
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", path.stem).strip("-.")
    if slug == path.stem:
        return slug
    return f"{slug}-{zlib.crc32(path.stem.encode(errors='backslashreplace')):08x}".lstrip("-")
