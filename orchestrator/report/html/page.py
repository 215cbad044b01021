"""A page as one HTML file that needs nothing else and asks nobody for anything.

Three things keep foreign text from acting: it is JSON in a block that is no script, with `<` spelled so that nothing can
end the block; the page's script only ever sets it as text; and the page's content security policy lets exactly the
scripts that are written here run (by their hashes) and nothing be loaded.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from functools import cache
from importlib import resources

from orchestrator.report.html.blocks import Page
from orchestrator.wording import visible

_SCRIPTS = ("elements.js", "table.js", "chart.js", "page.js")

_SHELL = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#content">Skip to the content</a>
<noscript><p class="lead">This page draws its tables and charts with JavaScript, all of it in this file.</p></noscript>
<div id="app"></div>
<script type="application/json" id="data">{data}</script>
<script>{plotly}</script>
<script>{script}</script>
</body>
</html>
"""


def to_html(page: Page) -> str:
    """The file's content. It has all its scripts within (about 5 MB) and works from any place, also without a network."""
    plotly, script, style = _plotly(), _own_script(), _asset("page.css")
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(plotly)} {_hash(script)}",
            "style-src 'unsafe-inline'",  # plotly places and styles its drawings so
            "img-src data: blob:",  # the page's empty icon; a chart that the reader saves as an image
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    parts = {
        "policy": policy, "title": html.escape(visible(page.title, 200)), "style": style, "data": embedded(page.as_json()),
        "plotly": plotly, "script": script,
    }  # fmt: skip
    return _SHELL.format_map(parts)


def embedded(value: object) -> str:
    """Strict ASCII JSON in which nothing can end, or begin, an element of HTML."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def plain(text: str, limit: int | None = 80) -> str:
    """Text that plotly shows as it is: it takes some tags and entities in its labels for markup."""
    shown = visible(text, limit)
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


@cache
def _plotly() -> str:
    return _script((resources.files("plotly") / "package_data" / "plotly.min.js").read_text("utf-8"))


@cache
def _own_script() -> str:
    return _script('(function () {\n"use strict";\n' + "".join(map(_asset, _SCRIPTS)) + "})();\n")


def _script(text: str) -> str:
    """A script as browsers see it: their parsers turn every line end into a newline before they hash it."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "</script" in text.lower() or "<!--" in text:
        text = text.replace("</script", "<\\/script").replace("<!--", "<\\!--")
    return text


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode('utf-8')).digest()).decode('ascii')}'"


@cache
def _asset(name: str) -> str:
    return (resources.files("orchestrator.report.html") / "assets" / name).read_text("utf-8")
