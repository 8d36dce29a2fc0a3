"""What is kept of a job: the journal of its events, and a dump of downsampled telemetry.

Words: the *account* is the lines that ``laggard`` prints, the *journal* the same as JSON, the *timeline* what
happened, reconstructed from a journal; the *gap* is the time between two launches in which nothing is
computed.
"""
