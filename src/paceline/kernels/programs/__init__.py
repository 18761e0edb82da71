"""Programs: lists of steps that the C library runs in one call."""
