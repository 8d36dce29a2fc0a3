"""What to do: who failed first, when a program hangs, the evidence against nodes, and the restart policy.

Pure functions and records. Nothing here reads a clock, starts a process or opens a connection: what happened and what
time it is come in as arguments, so that every rule is one line of a table test.

Words: the *roster* says which node has which role; a *row* is the failures and hangs since the last progress.
"""
