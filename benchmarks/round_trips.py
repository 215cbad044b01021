"""How often a run waits for the link: one case on one host over a link with a round trip of 200 ms.

    python benchmarks/round_trips.py [--rtt-ms 200] [--runs 5] [--log]

A proxy delays every byte on its way to a real sshd. The count is what the delay costs: (median wall time over the slow link −
median over the same link without delay) / round trip; from the start of the command to the result on the screen, and to the end of
the command. The first run, which uploads the agent, is not counted. Next to it stands the number of flights that the proxy
saw: how often the controller sent something after it had heard something.

The bound that this project keeps: at most 14 round trips from connect to result. Exit code 1 when it does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.link import SlowLink  # noqa: E402
from tests.support.sshd import Sshd  # noqa: E402

BOUND = 14
SWEEP = {
    "name": "one",
    "payload": {"script": "bench.py", "args": ["{{ m }}"], "results": "json_lines"},
    "matrix": {"m": [1]},
}
BENCH = "import json\nprint(json.dumps({'time_us': 5}))\n"


def run(work: Path, environ: dict[str, str], transport: str) -> tuple[float, float]:
    """(seconds to the result, seconds to the end) of one `farbench run`, from its first line on."""
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator", "run", "sweep.yaml", "--hosts-file", f"{transport}.yaml"],
        cwd=work, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    first = result = None
    text = ""
    for line in process.stdout:
        text += line
        first = first or time.perf_counter()
        if result is None and " ok" in line:
            result = time.perf_counter()
    ended = time.perf_counter()
    if process.wait() != 0 or first is None:
        raise SystemExit(f"the run failed:\n{text}")
    return (result or ended) - first, ended - first


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rtt-ms", type=float, default=200)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--transport", choices=["ssh", "openssh"], default="ssh")
    parser.add_argument("--log", action="store_true", help="print what went over the link, and when")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="farbench-bench-") as folder:
        work = Path(folder)
        server = Sshd(work / "sshd").start()
        with SlowLink((server.address, server.port)) as link:
            known = work / "known_hosts"
            known.write_text(f"[127.0.0.1]:{link.port} {server.host_public_key}\n")
            entry = {
                "address": "127.0.0.1", "port": link.port, "user": server.user, "identity_file": str(server.client_key),
                "known_hosts": str(known), "ssh_config": "/dev/null", "workdir": "~/farbench", "python": sys.executable,
                "devices": {"cpu": 1}, "transport": options.transport,
            }  # fmt: skip
            (work / f"{options.transport}.yaml").write_text(json.dumps({"hosts": {"h1": entry}}))
            (work / "sweep.yaml").write_text(json.dumps(SWEEP))
            (work / "bench.py").write_text(BENCH)
            environ = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(work)}
            environ.pop("SSH_AUTH_SOCK", None)
            run(work, environ, options.transport)  # uploads the agent
            quick = [run(work, environ, options.transport) for _ in range(options.runs)]
            link.one_way_s = options.rtt_ms / 2000
            slow = []
            for _ in range(options.runs):
                link.reset()
                slow.append(run(work, environ, options.transport))
            counts = link.counts
        server.stop()

    rtt_s = options.rtt_ms / 1000
    to_result, to_end = (
        (statistics.median(row[i] for row in slow) - statistics.median(row[i] for row in quick)) / rtt_s
        for i in (0, 1)
    )
    if options.log:
        began = counts.moments[0][0]
        for at, way, size in counts.moments:
            print(f"{at - began:7.3f} s {way} {size}")
    print(
        f"round trips to the result: {to_result:.1f}   to the end: {to_end:.1f}   flights: {counts.flights}"
    )
    holds = to_result <= BOUND
    print(f"bound: at most {BOUND} to the result: {'holds' if holds else 'DOES NOT HOLD'}")
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
