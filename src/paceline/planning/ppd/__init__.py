"""Dynamic sparse trees of guesses and prompt tokens: which one is built, how they are searched and
drawn (PPD, chapter 5)."""
