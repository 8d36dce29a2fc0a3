"""The ``laggard`` command and its sub-commands."""
