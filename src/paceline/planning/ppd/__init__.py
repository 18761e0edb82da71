"""Dynamic sparse trees of guesses and prompt tokens: building, searching and drawing them (PPD,
chapter 5)."""
