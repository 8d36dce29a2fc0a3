"""Probes of the links between nodes: which pairs exchange transfers when, how that is timed, and what NICs count.

Words: in a *sub-round* a node is with one partner at most; nodes below one *leaf* switch are near, others far; a
*path* is what joins two GPUs of a node; a *report* is what a node says after a round.
"""
