"""Dynamic sparse trees of guesses and prompt tokens (PPD, chapter 5)."""
