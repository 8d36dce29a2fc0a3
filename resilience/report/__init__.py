"""The report of a job: one HTML page and its figures, from the job's record."""
