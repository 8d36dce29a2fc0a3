"""Checkpoints: one shard per rank, in State, in the memory of the nodes, on their peers, and in a shared directory.

Words: the *manifest* is the records of all shards in State; a *shard server* holds a node's shards and copies of its
peers'; a *copy* is the bytes of a shard on one node, or in the shared directory.
"""
