"""Looking at a job while it runs: once (``laggard status``) or live (``laggard top``)."""
