"""Tables of docs/batches.md, docs/serve.md and docs/planning.md."""

from __future__ import annotations

from papers import LARGE, SMALL, Blocks, listed, report

from paceline.tables import markdown_table

_COLUMNS = {"after_the_prompts": "after the prompts", "tokens_per_second": "prompts included"}
_SHOWN = {"anpd": "ANPD", "auto, nothing kept": "`auto`, nothing kept", "auto": "`auto`"}
_WITH_ANSWERS = "auto with answers"


def throughput_table(name: str) -> str:
    """Tokens per second of all texts together, by number of texts at once."""
    rows = report(f"open-batch/{name}")["throughput"]["table"]
    counts = sorted({row["at_once"] for row in rows})
    lines = [["tokens per second, texts at once", *map(str, counts)]]
    for column, title in _COLUMNS.items():
        for method in dict.fromkeys(row["method"] for row in rows):
            found = {row["at_once"]: row for row in rows if row["method"] == method}
            cells = [
                f"{found[count][column]:.0f}"
                + (f" ({found[count][f'{column}_over_one']:.2f}x)" if count > 1 else "")
                for count in counts
            ]
            lines.append([f"`{method}`, {title}", *cells])
    return markdown_table(lines)


def joining_table() -> str:
    """How long other texts wait while a long prompt is read."""
    usual = "{worst_of_usual_over_median:.2f}x"
    return listed(
        report("open-batch/joining")["joining"]["runs"],
        {
            "": "`{method}`".format_map,
            "median between tokens, ms": lambda run: f"{1e3 * run['median_between_tokens']:.1f}",
            "worst while it is read, ms": lambda run: f"{1e3 * run['worst_while_read']:.1f}",
            "of the median": "{worst_over_median:.2f}x".format_map,
            "all but one in fifty, of the median": "{p98_over_median:.2f}x".format_map,
            "worst while nothing is read, of the median": usual.format_map,
            "its first token, s": "{seconds_to_first_token:.1f}".format_map,
        },
    )


def clients_table(name: str, *kinds: str) -> str:
    """Throughput and latency by clients and method; `off` is the base of the ratios."""
    found = report(name)["rows"]
    rows = [["clients", "method", "tokens/s", "over off", *kinds, "first token", "95 %"]]
    base = {each["clients"]: each for each in found if each["variant"] == "off"}
    for each in found:
        off = base[each["clients"]]
        speed = each["tokens_per_second"]
        each_kind = [
            f"{_speed(each, kind) / _speed(off, kind):.2f}x" if _speed(off, kind) else "-"
            for kind in kinds
        ]
        first = (f"{1e3 * each[f'first_token_{part}']:.0f} ms" for part in ("median", "p95"))
        over = f"{speed / off['tokens_per_second']:.2f}x"
        rows.append(
            [str(each["clients"]), each["variant"], f"{speed:.0f}", over, *each_kind, *first]
        )
    return markdown_table(rows, left=2)


def _speed(row: dict[str, dict[str, dict[str, float]]], kind: str) -> float:
    return row["kinds"].get(kind, {}).get("tokens_per_second", 0.0)


def peers_table() -> str:
    """Other servers beside paceline's plain decoding."""

    def first(each: dict[str, float | None]) -> str:
        seconds = each["first_token_median"]
        return "-" if seconds is None else f"{1e3 * seconds:.0f} ms"

    columns = {
        "clients": "{clients}".format_map,
        "server": "{server}".format_map,
        "at once": "{at_once}".format_map,
        "tokens/s": lambda each: f"{each['tokens_per_second'] or 0.0:.0f}",
        "over plain": "{over_plain:.2f}x".format_map,
        "first token": first,
    }
    return listed(report(f"serve-peers-{SMALL}")["rows"], columns, left=2)


def planning_table() -> str:
    """Planned trees against fixed budgets, on a simulated clock."""
    columns = {
        **{f"anpd, {budget}": f"ANPD, {budget}" for budget in (1, 3, 5)},
        "anpd, as proposed": "whole",
        "anpd as in its paper, planned": "planned",
        "anpd, planned": "planned, long",
        "anpd, planned without a curve": "no curve",
        "llma, as proposed": "LLMA, whole",
        "llma, planned": "planned, long",
        "pld, as proposed": "lookup, whole",
        "pld, planned": "planned",
    }
    rows = [["file", *columns.values()]]
    found = report(f"planning/{SMALL}")["contenders"]
    for file in found["anpd, planned"]["files"]:
        speedups = [f"{found[name]['files'][file]:.2f}x" for name in columns]
        rows.append([file.replace("_", " "), *speedups])
    return markdown_table(rows)


def left_out_table() -> str:
    """Speed-ups on recorded answers by file, leaving out each source of `auto` in turn."""
    replayed = report(f"planning/sources-{SMALL}")
    found, answers = replayed["contenders"], replayed["answers"]
    rest = [name for name in found if name.startswith("without ")]
    names = {**_SHOWN, _WITH_ANSWERS: "with answers", **{name: name for name in rest}}
    rows = [["file", *names.values(), "answers"]]
    for file in found[_WITH_ANSWERS]["files"]:
        speedups = [f"{found[name]['files'][file]:.2f}x" for name in names]
        rows.append([file.replace("_", " "), *speedups, str(answers[file])])
    totals = [f"{found[name]['speedup']:.2f}x" for name in names]
    rows.append(["all, by time", *totals, str(sum(answers.values()))])
    return markdown_table(rows)


def replayed_sources_table() -> str:
    """What each source did in the rounds of `auto` with answers."""
    sources = report(f"planning/sources-{SMALL}")["contenders"][_WITH_ANSWERS]["sources"]
    columns = {
        "source": "`{name}`".format_map,
        "rounds asked": lambda did: f"{did['asked'] / did['rounds']:.0%}",
        **{key: f"{{{key}:,}}".format_map for key in ("proposed", "scored", "accepted", "gained")},
    }
    return listed([{"name": name, **did} for name, did in sources.items()], columns)


BATCHES: Blocks = {
    "throughput": lambda: throughput_table("throughput"),
    "throughput-float32": lambda: throughput_table("throughput-float32"),
    "joining": joining_table,
}
SERVE: Blocks = {
    "serve": lambda: clients_table(f"serve-{SMALL}", "chat", "summary", "edit"),
    "serve-edits": lambda: clients_table(f"serve-edits-{LARGE}"),
    "serve-peers": peers_table,
}
PLANNING: Blocks = {
    "planning": planning_table,
    "left-out": left_out_table,
    "replayed-sources": replayed_sources_table,
}
