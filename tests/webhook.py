"""A webhook: a real HTTP server that takes lines."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator, Sequence

WAIT_S = 60.0


class Webhook(http.server.ThreadingHTTPServer):
    """Takes lines, and answers with the given codes, one after the other, and then with 200."""

    def __init__(self, codes: Sequence[int] = ()) -> None:
        super().__init__(("127.0.0.1", 0), _Post)
        self.codes = list(codes)
        self.lines: list[str] = []
        self.changed = threading.Condition()
        self.address = f"http://127.0.0.1:{self.server_address[1]}/secret"

    def wait_for(self, lines: int) -> None:
        """Wait until so many requests have come."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.lines) >= lines, WAIT_S)


class _Post(http.server.BaseHTTPRequestHandler):
    server: Webhook

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.changed:
            code = self.server.codes.pop(0) if self.server.codes else 200
            self.server.lines.append(body["text"])
            self.server.changed.notify_all()
        self.send_response(code)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def webhook(codes: Sequence[int] = ()) -> Iterator[Webhook]:
    with Webhook(codes) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
