"""What to do: the restart policy, when a program hangs, and which options fit together.

Pure functions and records. Nothing here reads a clock, starts a process or opens a connection: what happened and what
time it is come in as arguments, so that every rule is one line of a table test.

Words: the *roster* says which node has which role; a *cascade* is a line of a process that only noticed another's
end; the *back-off* is the wait between relaunches without progress.
"""
