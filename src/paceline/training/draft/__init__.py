"""Draft models: some layers of a model, trained to say what the whole model says."""
