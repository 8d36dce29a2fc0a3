"""Benchmarks that print tables, most of them compared with other tools. Run ``python -m benchmarks NAME``."""
