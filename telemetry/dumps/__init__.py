"""Samples in files, written and read."""
