"""The program's state: the mapping, how it is stored, commits, and the repair of a damaged log.

Words: a *part* is what one script stages of a large transaction; *local State* is that of a program without a job.
"""
