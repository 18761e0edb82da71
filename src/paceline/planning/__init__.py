"""What a pass costs here, and how large a tree may be because of it."""
