"""How a process of a job reaches the state server, and what fences its writes."""
