"""`python -m orchestrator` is `farbench`; also the console script.

Whatever takes time to load is loaded inside: Ctrl-C in the first moment is an answer, not a traceback.
"""

from __future__ import annotations

import gc
import sys
from typing import NoReturn

COLLECT_AFTER = 20_000
"""Python's own 700 new objects make it look for garbage hundreds of times while modules are loaded, which make none."""


def main() -> NoReturn:
    """The console script."""
    gc.set_threshold(COLLECT_AFTER)
    try:
        from orchestrator.cli.app import main as farbench

        farbench()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
