"""Questions to all nodes, and their answers."""
