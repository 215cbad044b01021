"""`python -m orchestrator` is `farbench`; also the console script.

Whatever takes time to load is loaded inside: Ctrl-C in the first moment is an answer, not a traceback.
"""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """The console script."""
    try:
        from orchestrator.cli.app import main as farbench

        farbench()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
