"""Finding an interpreter for the agent: a small shell script that works under every /bin/sh, and the loader that it starts.

An interpreter is started once, not first asked for its version: the loader says over descriptor 5 whether it will do, and
only then reads standard input, where the stub's source waits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

NO_PYTHON_STATUS = 97
_REPORT = b"farbench-python:"
_CANDIDATES = ("python3", *(f"python3.{minor}" for minor in range(13, 7, -1)), "/usr/bin/python3", "python")

# Under Python 2 and early 3 too, up to the exit. Standard input is read without a buffer, so that whatever comes after the
# stub's source is still there for the stub. (No single quotes: the shell script below puts it between two of them.)
_LOADER = r"""
import os, sys
if sys.version_info < (3, 8):
    os.write(5, ("is %d.%d.%d" % tuple(sys.version_info[:3])).encode("ascii"))
    sys.exit(97)
os.write(5, b"ok")
os.close(5)
def take(size):
    data = b""
    while len(data) < size:
        more = os.read(0, size - len(data))
        if not more:
            sys.exit(98)
        data += more
    return data
length = b""
while length[-1:] != b"\n":
    length += take(1)
exec(compile(take(int(length)), "farbench-stub", "exec"), {"__name__": "__main__"})
""".strip()

# Descriptors 3 and 4 keep the real streams, since a command substitution replaces standard output by a pipe: the one that
# becomes the loader's descriptor 5.
_FINDER = f"""
exec 3<&0 4>&1
for p in "$@"; do
  case $p in "~/"*) p=$HOME/${{p#??}};; esac
  command -v "$p" >/dev/null 2>&1 || continue
  said=$("$p" -I -X utf8 -c '{_LOADER}' <&3 5>&1 >&4 3<&- 4>&-)
  status=$?
  case $said in ok) exit $status;; esac
  test -n "$said" || said="is $("$p" -V 2>&1 </dev/null 3<&- 4>&-)"
  printf '{_REPORT.decode()} %s %s\\n' "$p" "$said" >&2
done
exit {NO_PYTHON_STATUS}
""".strip()


def stub_command(agent_python: str | None, payload_python: str | None = None) -> list[str]:
    """The command that starts the stub under the first interpreter that is new enough.

    Tried in order: `agent_python`, the usual names, and last the interpreter of the payloads.
    """
    wanted = (agent_python, *_CANDIDATES, payload_python)
    return ["/bin/sh", "-c", _FINDER, "farbench", *dict.fromkeys(name for name in wanted if name)]


def found_versions(stderr: bytes) -> Sequence[str]:
    """What the finder said of the interpreters that would not do: `python3 is 3.6.8`."""
    lines = [line[len(_REPORT) :] for line in stderr.splitlines() if line.startswith(_REPORT)]
    return [re.sub(r"\s+", " ", line.decode("utf-8", "replace")).strip()[:200] for line in lines]
