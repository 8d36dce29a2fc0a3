"""The controller, and the helpers that it keeps running for a job.

Runs in the ``laggard`` command, on the primary node. It may do everything: start processes, write to the state server,
talk to the agents through ``nodes/``. What to do about an event it asks ``decision/``.
"""
