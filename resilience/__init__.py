"""The laggard command: allocations, the cluster on them, and the restart controller."""
