"""What an exception of a backend means: one place that turns exceptions into a status and a reason."""

from __future__ import annotations

import re
import sys
import traceback
from typing import Iterable, Tuple

from . import gates, streams
from .declare import Library, Unsupported

# A library's own word for "not on this device" or "not this problem", by the exception's name …
REFUSALS = {"BackendSupportedError", "BatchInvariantUnsupportedError", "LibraryError", "NotImplementedError"}

# … or by its text. Wrong shapes and dtypes are not in here: those are errors of the call.
REFUSAL_TEXT = re.compile(
    r"CUBLAS_STATUS_NOT_SUPPORTED|no kernel image is available|CUDNN_STATUS_NOT_SUPPORTED"
    r"|(is|are) not supported|not supported (on|for|by)|(does|do) not support|only supports?\b|unsupported"
    r"|requires? (backend )?version|requires? (CUDA|compute capability|sm_?\d|the contraction|[MNK]\b)",
    re.IGNORECASE,
)
UNDEFINED_SYMBOL = re.compile(r"undefined symbol: ?(\S+)")


def classify(error: BaseException, libraries: Iterable[Library] = ()) -> Tuple[str, str]:
    """(status, reason) of a backend that raised `error`; `libraries` are those it uses."""
    text = _first_lines(str(error)) or type(error).__name__
    names = {cls.__name__ for cls in type(error).__mro__}
    if isinstance(error, Unsupported):
        return "unsupported", text
    if isinstance(error, MemoryError) or "OutOfMemoryError" in names or "CUDA out of memory" in text:
        return "oom", text
    if isinstance(error, (ImportError, OSError)) and UNDEFINED_SYMBOL.search(str(error)):
        return "unsupported", abi_mismatch(str(error), libraries)
    if isinstance(error, ImportError):
        return "unsupported", "does not import: {}".format(text)
    if names & REFUSALS or (
        isinstance(error, (RuntimeError, ValueError)) and REFUSAL_TEXT.search(str(error))
    ):
        return "unsupported", text
    return "error", "{}: {}".format(type(error).__name__, text)


def abi_mismatch(text: str, libraries: Iterable[Library]) -> str:
    """Name an undefined symbol for what it is: a library built for another torch."""
    symbol = UNDEFINED_SYMBOL.search(text)
    installed = [gates.installed_name(library) for library in libraries]
    return "ABI mismatch: {} (undefined symbol {}): not built for the torch that is installed".format(
        " and ".join(installed) or "a library", symbol.group(1).rstrip(",.;)'\"") if symbol else "?"
    )


def log(error: BaseException, what: str) -> None:
    """The whole traceback into the worker's log; a record only carries the reason."""
    streams.restore()
    try:
        print("farbench: {} failed".format(what), file=sys.stderr)
        traceback.print_exception(type(error), error, error.__traceback__, file=sys.stderr)
    except (AttributeError, OSError, ValueError):
        pass  # no usable standard error: the log is lost, not the outcome


def _first_lines(text: str, limit: int = 500) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    joined = " ".join(lines[:4])
    return joined if len(joined) <= limit else joined[: limit - 1] + "…"
