"""Looking at a job while it runs: at once (``laggard status``) or live (``laggard top``)."""
