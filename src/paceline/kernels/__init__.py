"""Faster stand-ins for the modules of a model; `paceline.targets.prepare` puts them in place of a
model's, and trained drafters in place of their own."""
