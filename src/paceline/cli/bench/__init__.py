"""`paceline bench`: measurements on the command line."""

from __future__ import annotations

from paceline.cli.bench import fetch, measuring, report, spec_bench
from paceline.cli.flags import App

__all__ = ["app"]

app = App(name="bench", help="Measure methods, and other software, on suites of prompts.")
for command in (measuring.run, measuring.simulate, measuring.ablate, report.report, fetch.fetch):
    app.command()(command)
app.add_typer(spec_bench.app)
