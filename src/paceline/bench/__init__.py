"""Benchmarks: methods and baselines on the same texts, in one process, timed by one clock."""
