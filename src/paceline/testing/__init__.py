"""Conformance suites for your own drafters and targets, for any test runner.

    def test_stutter() -> None:
        check_drafter(Stutter)

    def test_my_target() -> None:
        check_target(lambda: MyTarget(model), tolerance=1e-4)

On failure they raise AssertionError with a sentence that says what is wrong.
"""

from paceline.testing.drafters import check_drafter
from paceline.testing.targets import check_target

__all__ = ["check_drafter", "check_target"]
