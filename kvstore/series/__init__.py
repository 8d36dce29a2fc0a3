"""Time series: streams in the server, and samples in memory, compressed."""
