"""What runs on every node: the agent, and the helpers that it starts.

The agent talks to nobody but the controller, through its standard input and output, and imports neither Ray nor a
client of the state server. The helpers (``detect``, ``reserve_probe``) are processes of their own that use the state
server.
"""
