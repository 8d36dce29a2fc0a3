"""One node's samples and summaries in memory.

Words: a *tier* has summaries of all series in buckets of one width; a *rollup* is ten seconds of them, as a node
publishes them.
"""
