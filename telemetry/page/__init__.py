"""The page of a job's telemetry: one document with its style and scripts inside, which fetches nothing but data.

The files of this folder are put together when they are first asked for, so there is nothing to build. The charts are
drawn by uPlot 1.6.32 (https://github.com/leeoniya/uPlot, MIT licence), which lies in ``vendor`` as it was published.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

__all__ = ["Document", "document"]

_STYLES = ("vendor/uplot.css", "page.css")
_SCRIPTS = ("format.js", "colours.js", "live.js", "map.js", "charts.js", "events.js", "main.js")
_POLICY = (
    "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; script-src {scripts}; style-src {styles}"
)


@dataclass(frozen=True, slots=True)
class Document:
    """The page, and the content security policy that allows its own style and scripts, and no others."""

    html: bytes
    policy: str


@cache
def document() -> Document:
    """Return the page."""
    styles = ["\n".join(map(_read, _STYLES))]
    # The page's own scripts share one scope, so that each file can stay short.
    own = "\n".join(map(_read, _SCRIPTS))
    scripts = [_read("vendor/uplot.js"), f'"use strict";\n(() => {{\n{own}\n}})();\n']
    html = _read("page.html")
    html = html.replace("{{ styles }}", "".join(f"<style>{each}</style>" for each in styles))
    html = html.replace("{{ scripts }}", "".join(f"<script>{each}</script>" for each in scripts))
    policy = _POLICY.format(scripts=_hashes(scripts), styles=_hashes(styles))
    return Document(html.encode(), policy)


def _read(name: str) -> str:
    return files(__name__).joinpath(*name.split("/")).read_text(encoding="utf-8")


def _hashes(texts: Iterable[str]) -> str:
    digests = (hashlib.sha256(text.encode()).digest() for text in texts)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
