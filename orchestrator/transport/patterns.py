"""The patterns of OpenSSH's files: `*` and `?`, nothing else, and `!` in front to exclude."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase


def matches_pattern(text: str, pattern: str) -> bool:
    """Whether one pattern without `!` stands for `text`. (Brackets are no character class: `[host]:port` has them.)"""
    return fnmatchcase(text, pattern.replace("[", "[[]"))


def matches_list(text: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns matches and none with `!` does."""
    found = False
    for pattern in patterns:
        if pattern.startswith("!"):
            if matches_pattern(text, pattern[1:]):
                return False
        elif matches_pattern(text, pattern):
            found = True
    return found
