"""A model's pass as one call of the C library, built from a recording of its own forward."""
