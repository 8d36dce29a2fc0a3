"""Everything that needs Ray.

Words: an *existing* or *attached* cluster is one that we use but did not start.
"""
