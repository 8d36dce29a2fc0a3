"""Transfers between nodes: who slows them, and who no longer reaches whom. Reads no clock."""
