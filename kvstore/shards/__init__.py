"""Shards of checkpoints outside of State: in the memory of the nodes, on their peers, and in a shared directory."""
