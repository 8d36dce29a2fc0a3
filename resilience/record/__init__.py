"""What is kept of a job: what happened (the journal) and how its devices did (a dump of thinned samples)."""
