"""The measuring room: methods and rivals on the same texts, in one process, by one clock."""
