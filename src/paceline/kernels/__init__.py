"""Faster stand-ins for the modules of a model; `paceline.targets.prepare` installs them in a model,
and trained drafters in their own."""
