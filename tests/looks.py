"""Pictures of a page or a report as people see it: ``python -m tests.looks ADDRESS_OR_FILE FOLDER``.

One for each width of a window, in light and in dark, and with three kinds of colour vision.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import tempfile
from pathlib import Path

from tests.browser import browser, find_browser

WIDTHS = (390, 1280, 2560)
THEMES = ("light", "dark")
# Nobody's cones are missing, the green ones, or the blue ones.
VISIONS = ("none", "deuteranopia", "tritanopia")
HEIGHT, MORE = 900, 1500


def main() -> None:
    """Take all pictures."""
    parser = argparse.ArgumentParser(prog="python -m tests.looks", description=__doc__)
    parser.add_argument("what", help="the address of a page, or the file of a report")
    parser.add_argument("folder", type=Path, help="where the pictures go")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    what = given.what if "://" in given.what else Path(given.what).resolve()
    program = find_browser()
    assert program is not None, "there is no Chromium"
    with tempfile.TemporaryDirectory() as profile, browser(program, Path(profile)) as tab:
        tab.call("Emulation.setScrollbarsHidden", hidden=True)
        for width, theme in itertools.product(WIDTHS, THEMES):
            tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
            height = HEIGHT
            for _ in range(2):  # what is out of the window is not drawn
                tab.open(what, width, height)
                tab.wait_for("document.documentElement.dataset.loaded !== undefined")
                height = tab.measure("document.body.scrollHeight") + MORE
            box = {"x": 0, "y": 0, "width": width, "height": height - MORE, "scale": 1}
            for vision in VISIONS:
                tab.call("Emulation.setEmulatedVisionDeficiency", type=vision)
                picture = tab.call("Page.captureScreenshot", clip=box)
                (given.folder / f"{width}-{theme}-{vision}.png").write_bytes(base64.b64decode(picture["data"]))


if __name__ == "__main__":
    main()
