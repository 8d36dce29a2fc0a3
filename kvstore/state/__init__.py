"""The program's state: the mapping, how it is stored, commits, and the repair of a damaged log.

Words: *local State* is that of a program without a job.
"""
