"""The page of a job: one document with its style and scripts inside, live or with a job's data frozen inside it.

The files of this folder are put together when they are first asked for, so there is nothing to build. The charts are
drawn by uPlot 1.6.32 (https://github.com/leeoniya/uPlot, MIT licence), which lies in ``vendor`` as it was published.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import orjson

__all__ = ["Document", "frozen_document", "live_document"]

_STYLES = ("vendor/uplot.css", "page.css")
_SCRIPTS = tuple(  # in this order
    f"{name}.js"
    for name in (
        *("format", "colours", "axes", "view", "live", "frozen"),
        *("map", "links", "charts", "lanes", "events", "lines", "metrics", "main"),
    )
)
_POLICY = (
    "default-src 'none'; {connect}img-src data:; base-uri 'none'; form-action 'none'; "
    "script-src {scripts}; style-src {styles}"
)
_BLANK = re.compile(r"{{ (\w+) }}")


@dataclass(frozen=True, slots=True)
class Document:
    """The page, and the content security policy that allows its own style and scripts, and no others."""

    html: bytes
    policy: str


@cache
def live_document() -> Document:
    """Return the page that asks the server that serves it."""
    styles, scripts = _styles(), _scripts()
    policy = _policy(styles, scripts, "connect-src 'self'; ")
    text = _filled("laggard", styles, scripts)
    return Document(text.encode(), f"{policy}; frame-ancestors 'none'")


def frozen_document(title: str, data: dict[str, Any], *, facts: str, more: str, style: str) -> Document:
    """Return the page with its data inside, which asks nobody."""
    styles, scripts = [*_styles(), style], _scripts()
    policy = _policy(styles, scripts, "")
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    # Within a script element only these characters could end it.
    text = orjson.dumps(data).decode().replace("<", "\\u003c")
    inside = f'<script type="application/json" id="frozen">{text}</script>'
    return Document(_filled(title, styles, scripts, policy=meta, facts=facts, more=more, data=inside).encode(), policy)


def _filled(title: str, styles: Iterable[str], scripts: Iterable[str], **parts: str) -> str:
    values = {
        "title": html.escape(title),
        "styles": "".join(f"<style>{each}</style>" for each in styles),
        "scripts": "".join(f"<script>{each}</script>" for each in scripts),
        **parts,
    }
    return _BLANK.sub(lambda blank: values.get(blank[1], ""), _read("page.html"))


@cache
def _styles() -> tuple[str, ...]:
    return tuple(map(_read, _STYLES))


@cache
def _scripts() -> tuple[str, ...]:
    # The page's own scripts share one scope, so that each file can stay short.
    own = "\n".join(map(_read, _SCRIPTS))
    return _read("vendor/uplot.js"), f'"use strict";\n(() => {{\n{own}\n}})();\n'


def _policy(styles: Iterable[str], scripts: Iterable[str], connect: str) -> str:
    return _POLICY.format(scripts=_hashes(scripts), styles=_hashes(styles), connect=connect)


def _read(name: str) -> str:
    return files(__name__).joinpath(*name.split("/")).read_text(encoding="utf-8")


def _hashes(texts: Iterable[str]) -> str:
    digests = (hashlib.sha256(text.encode()).digest() for text in texts)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
