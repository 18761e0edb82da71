"""Faster stand-ins for the modules of a model; `paceline.targets.prepare` puts them in place."""
