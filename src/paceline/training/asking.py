"""How prompts are answered; the fields become command-line options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.errors import UsageError
from paceline.training.settings import option

if TYPE_CHECKING:
    from paceline.options import Options


@dataclass(frozen=True)
class Asking:
    """How prompts are answered.

    seed: decides the order of the prompts and what is sampled. temperature: 0 is greedy.
    max_new_tokens: per answer. longest_prompt: most tokens of a prompt, chat template and earlier
    turns included; longer ones are left out.
    method: the drafter, and budget its most nodes per round; they change no token. The budget is
    fixed: the widths of passes, and with them the last bits of scores, must be the same when the
    same prompts are asked again.
    batch: conversations answered together. They fill the passes, so by default nothing is guessed.

    Raises UsageError for a number out of range or an unknown method.
    """

    max_new_tokens: int = option(
        256, "Most new tokens, at least 1.", None, "--max-new-tokens", "-n"
    )
    temperature: float = option(0.0, "0 is greedy.", "Sampling")
    seed: int = option(0, "Same seed, same text.", "Sampling")
    longest_prompt: int = option(1024, "Leave out prompts with more tokens.", None, min=1)
    batch: int = option(16, "Prompts answered together.", None, min=1)
    method: str = option("plain", "Method and settings, e.g. anpd:n=5,k=7.", None)
    budget: int = option(4, "Most tokens guessed per round.", "Drafting")

    def __post_init__(self) -> None:
        from paceline.drafters import check_method

        if min(self.batch, self.longest_prompt) < 1:
            raise UsageError(
                "the batch and the longest prompt must be at least 1, got "
                f"{self.batch} and {self.longest_prompt}"
            )
        check_method(self.method)
        self.options(self.seed)

    def options(self, seed: int) -> Options:
        """These settings as options of one generation."""
        from paceline.options import Options

        return Options(
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            seed=seed,
            budget=self.budget,
        )
