"""Models behind the `Target` contract: a toy in memory, and any causal LM of transformers."""
