"""Metrics of the program, its nodes and its devices."""
