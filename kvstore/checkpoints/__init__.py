"""Checkpoints: one shard per rank, in State, in the memory of the nodes, on their peers, and in a shared directory."""
