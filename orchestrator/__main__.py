"""`python -m orchestrator` is `farbench`; also the console script.

Whatever takes time to load is loaded inside: Ctrl-C in the first moment is an answer, not a traceback.
"""

from __future__ import annotations

import gc
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn  # loading it takes a good part of the first moment

COLLECT_AFTER = 20_000
"""Python's own 700 new objects make it look for garbage hundreds of times while modules are loaded, which make none."""


def main() -> NoReturn:
    """The console script."""
    try:
        gc.set_threshold(COLLECT_AFTER)
        from orchestrator.cli.app import main as farbench

        farbench()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        forget_interrupt()
        sys.exit(130)


def forget_interrupt() -> None:
    """Where Ctrl-C came in the middle of an `exec`, as of a dataclass that is being made, Python remembers it although it
    was caught, and at its end kills itself by the signal instead of returning the exit code. Another `exec` clears that."""
    exec("")  # noqa: S102


if __name__ == "__main__":
    main()
