"""A model's pass as one C library call, built from a recording of the model's own forward."""
