"""Metrics of a node and its devices: load, memory, power, temperature, errors."""
