"""The program's state: the mapping, how it is stored, commits, and the repair of a damaged log."""
