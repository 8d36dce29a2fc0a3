"""One node's samples and summaries in memory."""
