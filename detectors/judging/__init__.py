"""From rounds of readings to verdicts: who is compared with whom, what is left out, what is kept, and what is told."""
