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
app.command("run")(run.run)
app.command("simulate")(simulate.simulate)
app.command("ablate")(ablate.ablate)
app.command("report")(report.report)
app.command("fetch")(fetch.fetch)
app.add_typer(spec_bench.app)
