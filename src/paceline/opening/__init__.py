"""Open models and draft models by name, and keep them prepared for the next start."""
