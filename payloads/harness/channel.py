"""The private way out: records leave on a descriptor that nothing but this process has.

Whatever libraries print, also from C, goes to the log; whatever they close, they close their own.
"""

from __future__ import annotations

import os
import sys
from typing import Any, BinaryIO, Dict, Optional

from . import strictjson

IN_VARIABLE = "FARBENCH_WORKER_IN"
OUT_VARIABLE = "FARBENCH_WORKER_OUT"

EXIT_CHANNEL_LOST = 74  # EX_IOERR


class ResultChannel:
    """Writes JSON lines to a descriptor, as the process that opened it and only while it is the same file."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._descriptor = descriptor
        self._owner = os.getpid()
        self._identity = _identity(descriptor)

    def send(self, message: Dict[str, Any]) -> None:
        """Write one line, whole. Ends the process when the descriptor is gone or now is something else: a result
        written elsewhere would be worse than a dead worker."""
        if os.getpid() != self._owner:
            os._exit(EXIT_CHANNEL_LOST)  # a fork of this process that came back into our code
        data = (strictjson.dumps(message) + "\n").encode("ascii")
        try:
            if _identity(self._descriptor) != self._identity:
                raise OSError("the result descriptor was closed and reused")
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            print("farbench: cannot report results: {}".format(error), file=sys.stderr, flush=True)
            os._exit(EXIT_CHANNEL_LOST)


def _identity(descriptor: int) -> Any:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def take_agent_descriptors() -> Optional[Any]:
    """(reader of requests, result channel) when an agent started this process, else None.

    The descriptors are kept from children at once, and the environment no longer names them.
    """
    names = os.environ.pop(IN_VARIABLE, None), os.environ.pop(OUT_VARIABLE, None)
    if names[0] is None or names[1] is None:
        return None
    requests = int(names[0])
    os.set_inheritable(requests, False)
    reader: BinaryIO = os.fdopen(requests, "rb")
    return reader, ResultChannel(int(names[1]))


def take_stdout() -> ResultChannel:
    """A channel to what is standard output now; from here on, standard output is the log (standard error)."""
    if sys.stdout is None:
        print("farbench: standard output is closed, and results go there: give it a file", file=sys.stderr)
        sys.exit(2)
    sys.stdout.flush()
    private = os.dup(1)
    os.dup2(2, 1)
    return ResultChannel(private)
