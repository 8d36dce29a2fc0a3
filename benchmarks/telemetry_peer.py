"""Dragon's telemetry code as a peer, run by a Python with ``dragonhpc[telemetry]`` but without Dragon's runtime.

``add N PORT``: calls its ``add_data`` N times; prints the median and the sum of the calls in nanoseconds.
``store PORT``: its node database server, started as Dragon does: gunicorn with one worker, SQLite.
``query PORT N_SERIES N_POINTS``: its aggregator with one worker, on a database with that many series and points; a
thread queue connects aggregator and node instead of Dragon's own.
"""

from __future__ import annotations

import json
import os
import queue
import sqlite3
import statistics
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

SCHEMA = "CREATE TABLE IF NOT EXISTS datapoints (metric varchar(50), timestamp varchar(30), value real, tags json)"


def add(n_calls: int, port: int) -> None:
    os.environ["DRAGON_TELEMETRY_LEVEL"] = "1"
    kind = import_module("dragon.telemetry.telemetry").Telemetry
    telemetry = kind.__new__(kind)
    vars(telemetry).update(
        metrics_url=f"http://localhost:{port}/api/metrics", formatted_data={"dps": {}}, _telemetry_level=1
    )
    costs_ns = []
    for i in range(n_calls):
        begun_ns = time.perf_counter_ns()
        telemetry.add_data("loss", float(i), tagk="rank", tagv="3")
        costs_ns.append(time.perf_counter_ns() - begun_ns)
    print(statistics.median(costs_ns), sum(costs_ns))


def store(port: int) -> None:
    with sqlite3.connect(_database()) as connection:
        connection.execute(SCHEMA)
    _serve(import_module("dragon.telemetry.tsdb_app").app, port)


def query(port: int, n_series: int, n_points: int) -> None:
    now_s = int(time.time())
    with sqlite3.connect(_database(), check_same_thread=False) as connection:
        connection.execute(SCHEMA)
        rows = [
            ("power", str(now_s - n_points + i), 300.0 + i % 7, json.dumps({"gpu": gpu}))
            for i in range(n_points)
            for gpu in range(n_series)
        ]
        connection.executemany("INSERT INTO datapoints VALUES (?,?,?,?)", rows)
    app = import_module("dragon.telemetry.aggregator_app").app
    kind = import_module("dragon.telemetry.dragon_server").DragonServer
    server = kind.__new__(kind)
    server.offline_telemetry_args = None
    asked: queue.Queue[dict[str, Any]] = queue.Queue()
    answered: queue.Queue[dict[str, Any]] = queue.Queue()

    def answer() -> None:
        cursor = sqlite3.connect(_database()).cursor()
        while True:
            request = asked.get()
            answered.put({**request, "result": server.query(request, None, cursor)})

    def begin(_: object) -> None:
        threading.Thread(target=answer, daemon=True).start()

    app.config.update(queue_dict={"here": asked}, return_queue=answered, result_dict={}, auth_key=None)
    _serve(app, port, post_worker_init=begin)


def _database() -> Path:
    # Where Dragon's server looks for it.
    user = os.environ.get("USER", str(os.getuid()))
    return Path("/tmp") / f"ts_{user}_{os.uname().nodename}.db"  # noqa: S108


def _serve(app: Any, port: int, **hooks: Any) -> None:
    base: Any = import_module("gunicorn.app.base").BaseApplication

    class Application(base):  # type: ignore[misc]
        def load_config(self) -> None:
            options = {"bind": f"localhost:{port}", "workers": 1, "loglevel": "critical", **hooks}
            for name, value in options.items():
                self.cfg.set(name, value)

        def load(self) -> Any:
            return app

    Application().run()


if __name__ == "__main__":
    command, *numbers = sys.argv[1:]
    commands: dict[str, Callable[..., None]] = {"add": add, "store": store, "query": query}
    commands[command](*map(int, numbers))
