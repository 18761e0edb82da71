"""The measuring room: methods and baselines on the same texts, in one process, by one clock."""
