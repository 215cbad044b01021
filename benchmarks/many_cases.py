"""What farbench adds to 200 cases that do nothing, on one host, as a ratio of things measured in the same minute.

    python benchmarks/many_cases.py [--runs 5] [--cases 200]

Side by side, in turn, each as a whole process: (a) `farbench run` of the sweep over SSH to a real sshd; (b) the rendered
script looping over the same cases by itself; (c) a bare paramiko client that connects and runs `true`.
The bound that this project keeps, on medians: a ≤ 3·b + 2.5·c. Exit code 1 when it does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.sshd import Sshd  # noqa: E402

BARE = """
import sys, paramiko
client = paramiko.SSHClient()
client.load_host_keys(sys.argv[1])
client.connect(sys.argv[2], port=int(sys.argv[3]), username=sys.argv[4], key_filename=sys.argv[5],
               look_for_keys=False, allow_agent=False)
status = client.exec_command("true")[1].channel.recv_exit_status()
client.close()
sys.exit(status)
"""


def seconds(argv: list[str], cwd: Path, environ: dict[str, str]) -> float:
    """Wall seconds of one process; its output is thrown away, its failure is ours."""
    started = time.perf_counter()
    subprocess.run(
        argv, cwd=cwd, env=environ, check=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return time.perf_counter() - started


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cases", type=int, default=200)
    options = parser.parse_args()

    work = Path(tempfile.mkdtemp(prefix="farbench-bench-"))
    server = Sshd(work / "sshd").start()
    try:
        host = {
            "address": server.address, "port": server.port, "user": server.user, "python": sys.executable,
            "identity_file": str(server.client_key), "known_hosts": str(server.known_hosts), "workdir": "~/farbench",
        }  # fmt: skip
        (work / "hosts.yaml").write_text(json.dumps({"hosts": {"h1": host}}))
        sweep = {
            "name": "noop",
            "payload": "noop",
            "matrix": {"i": list(range(options.cases))},
            "backends": ["noop"],
        }
        (work / "sweep.yaml").write_text(json.dumps(sweep))
        shutil.copytree(ROOT / "benchmarks" / "payloads", work / "payloads")
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(work)}
        farbench = [sys.executable, "-m", "orchestrator"]
        subprocess.run([*farbench, "render", "sweep.yaml", "-o", "scripts"], cwd=work, env=environ, check=True,
                       stdout=subprocess.DEVNULL)  # fmt: skip
        ways = {
            "farbench run over SSH": [*farbench, "run", "sweep.yaml", "--json"],
            "the script in one process": [sys.executable, "scripts/noop.py"],
            "bare paramiko, `true`": [
                sys.executable, "-c", BARE, str(server.known_hosts), server.address, str(server.port), server.user,
                str(server.client_key),
            ],
        }  # fmt: skip
        quiet = {**environ, "PYTHONWARNINGS": "ignore"}
        for argv in ways.values():
            seconds(argv, work, quiet)  # the first time fills caches: files on the host, bytecode here
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(options.runs):
            for name, argv in ways.items():
                times[name].append(seconds(argv, work, quiet))
        medians = {name: statistics.median(values) for name, values in times.items()}
        for name, values in times.items():
            print(f"{name:28} median {medians[name]:.3f} s   min {min(values):.3f}   max {max(values):.3f}")
        ours, script, bare = medians.values()
        bound = 3 * script + 2.5 * bare
        print(
            f"\n{options.cases} cases: farbench {ours:.3f} s, bound 3·script + 2.5·bare = {bound:.3f} s, ratio {ours / bound:.2f}"
        )
        return 0 if ours <= bound else 1
    finally:
        server.stop()
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
