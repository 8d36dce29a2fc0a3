"""The report of a job: one page and its pictures, from the job's record or from a dump."""
