"""Typed messages between the controller and the agents: one frozen record each, which both ends import.

One module for each subject: ``node``, ``tasks``, ``ray``, ``checks``, ``warm`` and ``detection``.
A command goes to an agent, a report comes from one, each as one line (``codec``); ``inbox`` calls what takes it.
The two heartbeats are lines that never change, since of a thousand agents there are a thousand a second.
"""

from laggard.resilience.wire.codec import decode, encode
from laggard.resilience.wire.inbox import Inbox
from laggard.resilience.wire.message import ALIVE, KEEP_ALIVE, Command, Report

__all__ = ["ALIVE", "KEEP_ALIVE", "Command", "Inbox", "Report", "decode", "encode"]
