"""What a program's output says: which line says why it ended, what kind of trouble that is, and what it names.

Pure. It is read as a prior: what is to be done is for :mod:`laggard.resilience.decision`.

Words: a *cascade* is a line of a process that only noticed another's end.
"""
