"""Methods of other packages on the command line: mistakes are one sentence, whatever the command."""

from __future__ import annotations

import pytest
from tests.cli.running import Command

HERE = "tests.outside_methods"
MISTAKES = [
    ("nowhere.at.all:Thing", "error: cannot load method 'nowhere.at.all:Thing': ModuleNotFound"),
    (f"{HERE}:NUMBER", f"error: method '{HERE}:NUMBER' is neither a subclass of paceline"),
    (f"{HERE}:Stutter:times=0", "error: times must be a whole number >= 1, got 0"),
]


@pytest.mark.parametrize(
    "words",
    [
        ("generate", "hello", "--method"),
        ("chat", "--method"),
        ("tune", "--method"),
        ("compare", "--methods"),
        ("bench", "run", "demo", "--out", "nowhere", "--methods"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize(("method", "said"), MISTAKES)
def test_a_mistake_ends_the_command_with_a_sentence(
    words: tuple[str, ...], method: str, said: str, command: Command
) -> None:
    ended = command(*words, method)
    assert ended.code == 2
    assert said in ended.said
    assert "Traceback" not in ended.err
