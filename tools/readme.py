"""Fill the README's generated blocks: the measured table and the loop, quoted from the source.

python tools/readme.py            rewrites README.md
python tools/readme.py --check    exits with 1 where it is stale
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DEMO = ROOT / "benchmarks/results/demo-smollm2-135m.json"
LOOP = ROOT / "src/paceline/loop.py"


def main() -> int:
    """Entry point."""
    old = README.read_text(encoding="utf-8")
    new = filled(old)
    if "--check" in sys.argv:
        return int(old != new)
    README.write_text(new, encoding="utf-8")
    return 0


def filled(text: str) -> str:
    """The README with every generated block made anew."""
    for name, content in {"demo": demo_table(), "loop": quoted_loop()}.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"README.md has no block {name!r}")
        block = f"{begin}\n{content}\n{end}"
        text = pattern.sub(lambda _, block=block: block, text)
    return text


def demo_table() -> str:
    """The table that `make demo` prints, from its result file."""
    report = json.loads(DEMO.read_text(encoding="utf-8"))
    heads = ["method", "tokens/s", "speed-up", "tokens per round", "drafts accepted", "identical"]
    rows = [heads, ["---", *["--:"] * 5]]
    rows += [_row(method) for method in report["methods"]]
    prompts = [[prompt["id"] for prompt in report["prompts"]]]
    by_prompt = [["method", *prompts[0]], ["---", *["--:"] * len(prompts[0])]]
    by_prompt += [
        [
            f"`{method['method']}`",
            *(f"{method['speedup_per_prompt'][prompt]:.2f}x" for prompt in prompts[0]),
        ]
        for method in report["methods"]
    ]
    machine = report["machine"]
    note = (
        f"{report['model']['name']}, float32, {machine['processor']}, {machine['threads']} threads, "
        f"{report['options']['max_new_tokens']} new tokens, greedy, medians of "
        f"{report['options']['repeats']} interleaved runs. The same by prompt:"
    )
    return f"{_markdown(rows)}\n\n{note}\n\n{_markdown(by_prompt)}"


def _row(method: dict[str, Any]) -> list[str]:
    drafted = method["mean_acceptance_length"] > 1
    return [
        f"`{method['method']}`",
        f"{method['tokens_per_second']:.1f}",
        f"{method['speedup']:.2f}x",
        f"{method['mean_acceptance_length']:.2f}",
        f"{method['draft_acceptance_rate']:.0%}" if drafted else "-",
        "yes" if method["identical"] else f"no ({len(method['mismatches'])})",
    ]


def _markdown(rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def quoted_loop() -> str:
    """`decode` and `play_round` as they stand in the source, without docstrings."""
    source = LOOP.read_text(encoding="utf-8")
    functions = {
        node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)
    }
    lines = source.splitlines()
    quotes = []
    for name in ("decode", "play_round"):
        node = functions[name]
        docstring = node.body[0]
        head = lines[node.lineno - 1 : docstring.lineno - 1]
        body = lines[docstring.end_lineno or 0 : node.end_lineno]
        quotes.append(dedent("\n".join(head + body)))
    return "```python\n" + "\n\n\n".join(quotes) + "\n```"


if __name__ == "__main__":
    sys.exit(main())
