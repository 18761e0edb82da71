"""What a pass costs on this machine, and how large a tree should therefore be."""
