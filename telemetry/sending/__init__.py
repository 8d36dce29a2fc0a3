"""What the program sends: numbers, batches, and the thread that sends them to its node."""
