"""What is loaded for the statistics."""

from __future__ import annotations

import subprocess
import sys


def test_neither_the_package_nor_a_verdict_loads_numpy_or_scipy() -> None:
    program = (
        "import sys, laggard, laggard.collectors.device, laggard.detectors.verdict\n"
        "light = {'numpy', 'scipy', 'pynvml', 'ray', 'cupy'} & set(sys.modules)\n"
        "import laggard.detectors.analysis.slow_gpu_analysis\n"
        "print(sorted(light), 'scipy' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[] False\n"
