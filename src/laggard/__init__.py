"""Find the slow GPU in your job and relaunch without its node.

Public names are loaded when they are first used, so ``import laggard`` is quick and needs none of the extras.
"""

from laggard.lazy import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
