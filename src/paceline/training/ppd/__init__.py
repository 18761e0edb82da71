"""Training of prompt tokens for PPD (Parallel Prompt Decoding, chapter 4)."""
