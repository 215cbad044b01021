"""The standard streams when nobody is at their other end: closed from the start, or left by their reader."""

from __future__ import annotations

import os
import sys
from typing import TextIO


def fill_gaps() -> None:
    """Standard input and error that were closed (`<&-`, `2>&-`) become the null device. Otherwise the next file that is
    opened gets their number, and takes in what a library has to say."""
    for number in (0, 2):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", errors="backslashreplace", closefd=False)


def drop(stream: TextIO) -> None:
    """What still waits for this stream, and what is yet to come, goes nowhere; Python's own end does not stumble over it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def emit(text: str) -> None:
    """Write to standard output. That its reader has left (`farbench run … | head -1`) ends nothing."""
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        drop(sys.stdout)


def mention(text: str) -> None:
    """Write to standard error at once. That nobody hears it ends nothing."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        drop(sys.stderr)
