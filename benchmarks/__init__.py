"""Benchmarks: each prints a table beside its peers. Run ``python -m benchmarks NAME``."""
