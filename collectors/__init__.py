"""Readings: devices, the probes that time them, and node metrics."""
