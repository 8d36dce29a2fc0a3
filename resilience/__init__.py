"""The ``laggard`` command: it starts a program on the nodes of an allocation and relaunches it without bad ones.

The folders say where a line runs and what it may touch:

===============  ===========================================================================================
``decision/``    what to do about an event, and which options fit together; pure
``agent/``       runs on every node: starts, watches and ends the processes there
``allocation/``  which nodes there are, and how to start a process on each: this machine, Slurm, ssh
``nodes/``       runs on the primary: the controller's end of each agent, and the program of a launch
``ray/``         everything that imports Ray or starts its processes
``controller/``  runs on the primary: waits for events, asks ``decision/``, ends a launch and begins the next
``record/``      what is kept of a job: what happened, and how its devices did
``views/``       ``laggard status`` and ``laggard top``: a job while it runs
``report/``      ``laggard report``: a job as a page
``command/``     the command line
===============  ===========================================================================================

Public names are loaded on first use, so that a node's agent, which needs few of them, starts quickly.
"""

from laggard.lazy import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
