"""Who is slow: turns rounds of readings into verdicts, by the statistics. Pure."""
