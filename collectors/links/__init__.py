"""Probes of the links between nodes: which pairs exchange a burst when, how that is timed, and what NICs count."""
