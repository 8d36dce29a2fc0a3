"""Image convolution as in ``scipy_scale_work.py``, with telemetry dumps during and after the run.

    laggard --local-nodes=2 --telemetry-level=3 --telemetry-config=examples/telemetry.yaml \
        examples/scipy_scale_work_db_dump.py --dragon --size 64 --mem 262144

Each worker also reports how long each image took, under its own process number. A dump is one file per node, in the
``dump_dir`` of the telemetry settings; ``laggard replay DUMPS`` serves it again after the job is gone.
"""

from __future__ import annotations

import sys
import time

from scipy_scale_work import Work, convolve, parse_arguments, run

from laggard import AnalysisClient, Telemetry

DUMP_EVERY = 5


def convolve_and_report(work: Work) -> None:
    """Filter an image and report how long that took."""
    begun_s = time.perf_counter()
    convolve(work)
    telemetry = Telemetry(per_process=True)  # tags its samples with the number of this process
    telemetry.add_data("elapsed_time", time.perf_counter() - begun_s, telemetry_level=3)


def main() -> None:
    """Run, with a dump after every fifth iteration and one at the end."""
    given = parse_arguments("Filter images with a pool of workers, and dump the telemetry.")
    telemetry, client = Telemetry(), AnalysisClient()
    if telemetry.level == 0:
        sys.exit("there is nothing to dump at telemetry level 0: start this with 'laggard --telemetry-level=3 ...'")
    client.connect(timeout=60)

    def dump() -> None:
        telemetry.finalize()  # sends what this process still has
        for path in client.db_dump():
            print(f"dumped {path}", flush=True)

    def dump_sometimes(iteration: int) -> None:
        if iteration % DUMP_EVERY == 0:
            dump()

    run(given, convolve_and_report, dump_sometimes)
    dump()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
