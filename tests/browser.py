"""A real browser, spoken to over pipes: what it fetched, what it complained of, and what it measured."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["Browser", "browser", "find_browser"]

DEADLINE_S = 60.0
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)
_WAIT = """new Promise((done) => {{
    const look = () => ({expression}) && (observer.disconnect(), done({expression}));
    const observer = new MutationObserver(look);
    observer.observe(document, {{ subtree: true, childList: true, attributes: true, characterData: true }});
    setTimeout(() => done(null), {deadline_ms});
    look();
}})"""


def find_browser() -> str | None:
    """Return the path of a Chromium, if there is one."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One tab.

    Attributes
    ----------
    fetched
        Addresses that were asked for.
    complaints
        Errors and warnings of the console.
    """

    def __init__(self, send_fd: int, answer_fd: int) -> None:
        self.fetched: list[str] = []
        self.complaints: list[str] = []
        self._send = os.fdopen(send_fd, "wb", buffering=0)
        self._answers = os.fdopen(answer_fd, "rb", buffering=0)
        self._unread = b""
        self._number = 0
        self._session: str | None = None
        self._loaded = False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def open(self, page: Path | str, width: int, height: int) -> None:
        """Show a page, a file or an address, in a window of this size, and wait until it is loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self._loaded = False
        self.call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        until_s = time.monotonic() + DEADLINE_S
        while not self._loaded:
            assert time.monotonic() < until_s, f"{page} was not loaded in time"
            self._take(self._next())

    def measure(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        return found["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """Return the value of a JavaScript expression as soon as a change of the page makes it true."""
        value = self.measure(_WAIT.format(expression=expression, deadline_ms=round(DEADLINE_S * 1000)))
        assert value, f"in vain: {expression}; {self.measure('document.body.innerText')}; {self.complaints}"
        return value

    def click(self, x: float, y: float) -> None:
        """Move the pointer to a place in the window and press its button."""
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str, text: str = "") -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, text=text if kind == "keyDown" else "")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Have the browser do something, and return its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._send.write(json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self._take(answer)
        assert "error" not in answer, answer
        return dict(answer["result"])

    def close(self) -> None:
        """Close the pipes, which ends the browser."""
        self._send.close()
        self._answers.close()

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            data = os.read(self._answers.fileno(), 1 << 16)
            assert data, "the browser has ended"
            self._unread += data
        message, _, self._unread = self._unread.partition(b"\0")
        return dict(json.loads(message))

    def _take(self, event: dict[str, Any]) -> None:
        what = event.get("params", {})
        match event.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Network.requestWillBeSent":
                self.fetched.append(what["request"]["url"])
            case "Log.entryAdded":
                self.complaints.append(what["entry"]["text"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(what["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if what["type"] in {"error", "warning", "assert"}:
                self.complaints.append(str(what["args"]))


@contextmanager
def browser(program: str, profile: Path) -> Iterator[Browser]:
    """Run a browser with a fresh profile."""
    their_commands, our_commands = os.pipe()
    our_answers, their_answers = os.pipe()
    # The browser takes commands on descriptor 3 and answers on 4.
    shell = f'exec "$0" "$@" 3<&{their_commands} 4>&{their_answers}'
    process = subprocess.Popen(
        ["/bin/bash", "-c", shell, program, *OPTIONS, f"--user-data-dir={profile}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(their_commands, their_answers),
        start_new_session=True,
    )
    os.close(their_commands)
    os.close(their_answers)
    tab = Browser(our_commands, our_answers)
    try:
        yield tab
    finally:
        tab.close()
        try:
            process.wait(DEADLINE_S / 6)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
