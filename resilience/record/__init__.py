"""What is kept of a job: the journal of its events, and a dump of downsampled telemetry."""
