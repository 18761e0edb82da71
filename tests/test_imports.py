"""What importing paceline does not import; in a process of its own, which takes seconds, so once."""

from __future__ import annotations

import subprocess
import sys

_SERVING = ("fastapi", "uvicorn", "prometheus_client")
_TESTING = ("pytest", "hypothesis")


def test_the_library_needs_neither_server_nor_test_runner() -> None:
    code = (
        "import sys, paceline, paceline.cli, paceline.session, paceline.testing;"
        f"sys.exit(', '.join({{*{_SERVING + _TESTING}}} & sys.modules.keys()) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
