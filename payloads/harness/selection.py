"""What a script that stands alone was asked for on its command line: which cases, and which backends."""

from __future__ import annotations

import argparse
import fnmatch
from typing import Any, List, Mapping, Optional, Sequence

_CASES_NAMED = 20


def parse(name: str, argv: Optional[Sequence[str]], cases: Sequence[Mapping[str, Any]]) -> argparse.Namespace:
    """The options of payload `name`; `chosen` are the cases, with the backends that are wanted. Ends the process with exit
    code 2 for a choice that fits nothing, and says what there is."""
    parser = argparse.ArgumentParser(
        description="Benchmark {}: prints one JSON line a measurement on standard output.".format(name)
    )
    parser.add_argument("--list", action="store_true", help="list the cases and end")
    parser.add_argument(
        "--case", action="append", metavar="ID", help="only this case: id, prefix of one, or label glob"
    )
    parser.add_argument("--backend", action="append", metavar="NAME", help="only this backend")
    options = parser.parse_args(argv)
    for asked in options.case or ():
        if not any(_fits(item, asked) for item in cases):
            parser.error("--case {!r} fits no case; there are:{}".format(asked, _listed(cases)))
    named = [item for item in cases if not options.case or any(_fits(item, asked) for asked in options.case)]
    backends = list(dict.fromkeys(backend for item in named for backend in item["backends"]))
    for asked in options.backend or ():
        if asked not in backends:
            parser.error(
                "--backend {!r} is none of {}: there are {}".format(
                    asked, "the chosen cases'" if options.case else "the script's", ", ".join(backends)
                )
            )
    options.chosen = _with_backends(named, options.backend)
    return options


def line(item: Mapping[str, Any]) -> str:
    """A case as `--list` shows it."""
    return "{}  {}  [{}]".format(item["case_id"], item["label"], ", ".join(item["backends"]))


def _fits(item: Mapping[str, Any], asked: str) -> bool:
    return str(item["case_id"]).startswith(asked) or fnmatch.fnmatchcase(str(item["label"]), asked)


def _with_backends(
    cases: Sequence[Mapping[str, Any]], wanted: Optional[Sequence[str]]
) -> List[Mapping[str, Any]]:
    chosen: List[Mapping[str, Any]] = []
    for item in cases:
        backends = [name for name in item["backends"] if not wanted or name in wanted]
        if backends:
            chosen.append(dict(item, backends=backends))
    return chosen


def _listed(cases: Sequence[Mapping[str, Any]]) -> str:
    lines = [line(item) for item in cases[:_CASES_NAMED]]
    if len(cases) > len(lines):
        lines.append("and {} more (--list)".format(len(cases) - len(lines)))
    return "".join("\n  " + text for text in lines or ["none"])
