"""Training of heads on a model's last states: Medusa-1, and the draft model of Chimera."""
