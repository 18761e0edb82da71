"""`paceline bench`: measurements on the command line, one file per command."""

from __future__ import annotations

import typer

from paceline.cli.bench import ablate, fetch, report, run, simulate, spec_bench

__all__ = ["app"]

app = typer.Typer(
    name="bench",
    help="Measure methods, and other software, on suites of prompts.",
    no_args_is_help=True,
)
for command in (run.run, simulate.simulate, ablate.ablate, report.report, fetch.fetch):
    app.command()(command)
app.add_typer(spec_bench.app)
