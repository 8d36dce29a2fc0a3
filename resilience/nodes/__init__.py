"""The controller's view of the nodes: its end of each agent, and the program of a launch.

Runs in the ``laggard`` command, on the primary node. On other nodes it changes nothing itself: it sends commands to
their agents (``agent/``). It knows neither Ray nor the policy.
"""
