"""References: in which state a device's past was learned, and when it must be learned anew. Pure, on arrays.

A past that was learned idle says nothing of a busy device, but one that was learned busy holds for an idle one as well:
it reads less. So states are only ever gained, and one past for each device is enough.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from laggard.detectors.statistics.estimates import Floats
from laggard.detectors.statistics.history import History


def enter_states(
    history: History, rows: NDArray[np.intp], states: NDArray[np.uint8] | None, typical: Floats
) -> NDArray[np.bool_] | None:
    """Let devices that gained a state learn their past anew; return which devices are in a lower one than their past.

    Parameters
    ----------
    rows, states
        Which devices are in which state, ``(n_rows,)``; without states nothing changes.
    typical
        Where each device's typical peer is, relative to its group's common mode, ``(n_probes, n_devices)``.
    """
    if states is None:
        return None
    is_new = (states & ~history.state[rows]) != 0
    if is_new.any():
        new = rows[is_new]
        history.enter(new, states[is_new], np.broadcast_to(typical, history.baseline.shape)[:, new])
    is_lower = (history.state[rows] & ~states) != 0
    if not is_lower.any():
        return None
    found = np.zeros(len(history.state), np.bool_)
    found[rows] = is_lower
    return found


def without_lower(residual: Floats, is_lower: NDArray[np.bool_] | None, baseline: Floats) -> Floats:
    """Leave out what would be learned of devices in a lower state, ``(n_probes, n_devices)``."""
    return residual if is_lower is None else np.where(is_lower & np.isnan(baseline), np.float32(np.nan), residual)
