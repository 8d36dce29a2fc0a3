"""Readings: devices, the probes that time them, and collectors that run on every device of a launch.

Names are loaded on first use: a light module below this one loads neither NumPy nor a driver's library.

Words: a *board* is a whole GPU as NVIDIA's driver lists it, a device a board or a MIG slice of one. The *schedule*
says when a device's next probe is due; a device with *stride* 3 takes every third turn. *Intrusion* is the share of
its time that probes take. An *inline* probe is run by the program itself. A *symptom* is what the driver reports
around a probe.
"""

from laggard.lazy import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
