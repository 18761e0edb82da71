"""Training of drafters: the target's own answers, and what is learned from them."""
