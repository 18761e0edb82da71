"""Models behind the `Target` contract: an in-memory toy, and any causal LM of transformers."""
