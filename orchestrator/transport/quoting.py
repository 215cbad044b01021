"""The only place that builds a shell line.

An SSH server hands a command to the *login shell* of the user, as one string: sh, bash, dash, zsh, ksh, fish, tcsh, … They
agree on very little. They do agree that text in single quotes stands for itself, as long as it holds no quote, no newline,
no `!` (history in csh) and no backslash before a quote or a backslash (fish). So the line is always

    exec /bin/sh -c '<a POSIX line in such characters>'

and a POSIX line that needs other characters travels as octal escapes, which /bin/sh decodes and evaluates.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MAX_LINE_BYTES = 120_000
"""Linux refuses a single argument over 128 KiB, and the login shell gets the line as one."""

_BARE_WORD = re.compile(rb"[A-Za-z0-9_@%+=:,./-]+")
_PLAIN_TEXT = re.compile(rb"[A-Za-z0-9_@%+=:,./ -]*")
_NOT_PLAIN = re.compile(rb"[^A-Za-z0-9_@%+=:,./ -]")


def login_shell_line(argv: Sequence[str]) -> str:
    """One line that makes any login shell run exactly `argv`, byte for byte; pure ASCII without newlines.

    Lone surrogates (as from `os.fsdecode`) stand for the bytes they came from. Raises `ValueError` for an empty list, an
    argument with a NUL byte, and a line that no host could take (data belongs in standard input or in files).
    """
    line = f"exec /bin/sh -c '{_within_single_quotes(_posix_line(argv))}'"
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(
            f"a command line of {len(line)} bytes is longer than a host takes ({MAX_LINE_BYTES})"
        )
    return line


def _posix_line(argv: Sequence[str]) -> bytes:
    """A line for a POSIX shell; `exec` so that the status or the signal of the command is the shell's own."""
    if not argv:
        raise ValueError("no command")
    return b"exec " + b" ".join(_posix_word(argument) for argument in argv)


def _posix_word(argument: str) -> bytes:
    word = argument.encode("utf-8", "surrogateescape")
    if b"\0" in word:
        raise ValueError(f"an argument cannot hold a NUL byte: {argument!r}")
    if _BARE_WORD.fullmatch(word):
        return word
    if _PLAIN_TEXT.fullmatch(word):
        return b'"' + word + b'"'
    return b"'" + word.replace(b"'", b"'\\''") + b"'"


def _within_single_quotes(line: bytes) -> str:
    """`line`, or a line that decodes and evaluates it, in characters that stand for themselves in single quotes.

    `%b` takes `\\0ooo`; escapes in printf's format itself are read differently by different shells. A backslash is
    followed by a digit here, never by a quote or a backslash. Nothing is lost by the command substitution, which drops
    trailing newlines: a POSIX line ends in a word or a quote.
    """
    if re.fullmatch(rb'[A-Za-z0-9_@%+=:,./ "-]*', line):
        return line.decode("ascii")
    encoded = _NOT_PLAIN.sub(lambda match: b"\\0%03o" % ord(match[0]), line)
    return f'eval "$(printf %b "{encoded.decode("ascii")}")"'
