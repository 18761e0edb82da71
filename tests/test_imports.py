"""What paceline does not import; in a process of its own, which takes seconds."""

from __future__ import annotations

import subprocess
import sys

_CODE = """
import sys
from pathlib import Path
import paceline.cli, paceline.models

print(*{"torch", "numpy"} & sys.modules.keys())  # a command that lists files need not wait for them

from paceline.drafters.trained_heads import ChimeraParts, EagleParts, MedusaParts

for kind in (ChimeraParts, EagleParts, MedusaParts):
    kind.from_pretrained(Path(paceline.__file__).parent / f"data/{kind.__name__[:-5].lower()}/smollm2-135m")
print(*{"sympy", "torch._dynamo"} & sys.modules.keys())  # compilers

import paceline.cli, paceline.session, paceline.testing

others = {"fastapi", "uvicorn", "prometheus_client", "pytest", "hypothesis"}
print(*others & sys.modules.keys())
"""


def test_trained_parts_need_no_compiler_and_the_library_no_server_or_test_runner() -> None:
    done = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr
