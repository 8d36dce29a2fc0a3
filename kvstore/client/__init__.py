"""How a process of a job reaches the state server, and what fences its writes.

Words: an *endpoint* is the address, password and certificate of the state server.
"""
