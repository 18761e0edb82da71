"""What drafters are trained with: the target's own answers, and what is made of them."""
