"""Itemised lists: differences, failures, texts left out, and how a run was made."""

from __future__ import annotations

from typing import Any

from paceline.bench.entries import Difference, Key
from paceline.bench.metrics import MethodSummary
from paceline.bench.report import words
from paceline.bench.report.blocks import Block, Listing
from paceline.bench.report.folder import Run
from paceline.tables import Columns, Table

_MOST = 100
_ABOUT_DIFFERENCES = (
    "Position: counted from 0 in the output. Logit gap: the target's logit of plain's token minus "
    "that of the other, from a pass over one token."
)
_NOTHING: tuple[Any, ...] = (None, "", {}, [])


def exceptions(run: Run) -> list[Block]:
    """Differences, failures and texts left out; a sentence if there are none."""
    group, left_out = run.summary.overall, run.summary.left_out
    failures = [
        [method.method, words.text_name(key), reason]
        for method in group.methods.values()
        for key, reason in method.failures.items()
    ]
    failures += [[name, "every text", why] for name, why in group.failed.items()]
    left = [[words.text_name(one.key), one.task, one.reason] for one in left_out]
    tables = [
        *map(_differences, group.methods.values()),
        Table("Failures", ["method", "text", "reason"], failures, left=3),
        Table("Texts left out", ["text", "task", "reason"], left, left=3),
    ]
    found: list[Block] = [table for table in tables if table.rows]
    return found or ["No output differs, nothing failed, and no text was left out."]


def _differences(method: MethodSummary) -> Table:
    found = method.places
    note = _ABOUT_DIFFERENCES
    if len(found) > _MOST:
        note += f" These are the first {_MOST} of {len(found)}; the result file has them all."
    caption = f"Where {method.method} differs from plain decoding"
    return Table.of(caption, _DIFFERENCES, found[:_MOST], note=note)


_DIFFERENCES: Columns[tuple[Key, Difference]] = {
    "text": lambda one: words.text_name(one[0]),
    "position": lambda one: str(one[1].position),
    "plain's token": lambda one: words.known(one[1].plain_token, str, "ended"),
    "its token": lambda one: words.known(one[1].method_token, str, "ended"),
    "logit gap": lambda one: words.known(one[1].logit_gap, words.short),
}


def circumstances(run: Run) -> list[Block]:
    """The command, and all that the file says about its run."""
    told = {name: value for name, value in run.header.items() if name not in ("run", "command")}
    rows = [
        [name.replace("_", " "), _fact(value)]
        for name, value in {**run.asked, **told}.items()
        if value not in _NOTHING
    ]
    command = str(run.header.get("command", ""))
    again = (
        "To measure again, install the versions named below and run this command with another "
        "folder for results; the prompts are the same if the digest under “texts” is."
    )
    facts = Table(f"From {run.path.name}", ["what", "value"], rows, left=2)
    if not command:
        return [facts]
    return ["The command, as it was run:", Listing(command), again, facts]


def _fact(value: Any) -> str:
    """{"cores": 2, "device": "cpu"}  ->  "cores 2; device cpu" """
    if isinstance(value, dict):
        return "; ".join(
            f"{name.replace('_', ' ')} {_fact(each)}"
            for name, each in value.items()
            if each not in _NOTHING
        )
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
