"""`paceline bench`: measurements on the command line, one file per command."""

from __future__ import annotations

from paceline.cli.bench import ablate, fetch, report, run, simulate, spec_bench
from paceline.cli.flags import App

__all__ = ["app"]

app = App(name="bench", help="Measure methods, and other software, on suites of prompts.")
for command in (run.run, simulate.simulate, ablate.ablate, report.report, fetch.fetch):
    app.command()(command)
app.add_typer(spec_bench.app)
