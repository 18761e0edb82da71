"""What paceline does not import; in processes of their own, which take seconds."""

from __future__ import annotations

import subprocess
import sys

_SERVING = ("fastapi", "uvicorn", "prometheus_client")
_TESTING = ("pytest", "hypothesis")
_COMPILER = ("sympy", "torch._dynamo")
_PARTS = """
from pathlib import Path
import paceline
from paceline.drafters.trained_heads import ChimeraParts, EagleParts, MedusaParts

for kind in (ChimeraParts, EagleParts, MedusaParts):
    kind.from_pretrained(Path(paceline.__file__).parent / f"data/{kind.__name__[:-5].lower()}/smollm2-135m")
"""


def check(code: str, unwanted: tuple[str, ...]) -> None:
    code += f"\nimport sys; sys.exit(', '.join({{*{unwanted}}} & sys.modules.keys()) or None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_library_needs_neither_server_nor_test_runner() -> None:
    check("import paceline, paceline.cli, paceline.session, paceline.testing", _SERVING + _TESTING)


def test_trained_parts_need_no_compiler() -> None:
    check(_PARTS, _COMPILER)
