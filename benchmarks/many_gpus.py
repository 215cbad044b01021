"""Whether all GPUs of a host are used, fairly, and without getting in each other's way: runs sweeps and judges them.

    cd examples/gpus && python ../../benchmarks/many_gpus.py ALL ONE [--sweeps eight] [--set AXIS=VALUES] [--archive DIR] [--output results.md]

ALL and ONE are entries of hosts.yaml for the same machine: all of its devices, and one of them (`devices: [0]`). Of the sweeps
`eight-spread.yaml`, `eight-scaling.yaml`, `eight-gangs.yaml` and `eight-crash.yaml` each that exists is run and judged:

- spread (every case on every device), on ALL and then on ONE: how far the devices differ, and whether the one device is slower
  while the others work too. It also fills the compiler caches for what follows.
- scaling (each case once), on ALL and on ONE: each device has its share within 25% of the mean, and n devices take at most
  1 / (0.8125 n) of one device's time, from the last worker's readiness to the last result.
- gangs: every measurement ends `ok` or `unsupported`, every case has one that is `ok`, and the devices are at work for at least
  80% of the time.
- crash: the case that kills its context is `crashed`, every other one `ok`, and only its device needed another worker.

Prints what it found; exit code 1 when a bound does not hold, 2 when there is nothing to run. What runs is told on standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

SHARE = 0.25
"""How far a device's number of measurements may be from the mean, as a part of it."""
EFFICIENCY = 0.8125
"""Of the ideal: eight devices in 1/6.5 of the time of one."""
SLOWER = 0.02
"""How much slower a device may be while the others work too."""
AT_WORK = 0.8


@dataclass
class Run:
    """One run that came home."""

    run_id: str
    document: dict[str, Any]
    measurements: list[dict[str, Any]]
    events: list[dict[str, Any]]

    def timed(self) -> list[dict[str, Any]]:
        """The measurements with a time."""
        return [m for m in self.measurements if m["status"] == "ok" and m["timing"]]

    def devices(self) -> list[str]:
        """All that the host offered, also those that measured nothing."""
        return sorted(
            device["uuid"] for host in self.document["hosts"].values() for device in host["devices"]
        )

    def work_s(self) -> float:
        """Seconds from the last worker's first readiness to the last result."""
        ready: dict[str, float] = {}
        for event in self.events:
            if event["type"] == "worker_ready":
                for device in event["devices"]:
                    ready.setdefault(device, event["mono"])
        return max(e["mono"] for e in self.events if e["type"] == "measurement") - max(ready.values())

    def workers_by_device(self) -> dict[str, set[str]]:
        """The workers that served each device."""
        served: dict[str, set[str]] = defaultdict(set)
        for event in self.events:
            if event["type"] == "worker_ready":
                for device in event["devices"]:
                    served[device].add(event["worker"])
        return dict(served)


@dataclass
class Findings:
    """What is printed, and which bounds did not hold."""

    lines: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def say(self, line: str) -> None:
        self.lines.append(line)

    def hold(self, holds: bool, what: str) -> None:
        """A bound: said either way."""
        self.lines.append(f"- {'holds' if holds else '**does not hold**'}: {what}")
        if not holds:
            self.broken.append(what)


def judge_spread(together: Run, alone: Run, found: Findings) -> None:
    """The devices among each other, and the one device among working ones against itself alone."""
    cases: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    for m in together.timed():
        cases[m["payload"], m["label"], m["backend"]][m["device"]["uuid"]] = m["timing"]["median_us"]
    devices = together.devices()
    found.say("| payload | case | backend | devices | median µs | fastest | slowest | spread |")
    found.say("|---|---|---|---|---|---|---|---|")
    for (payload, label, backend), times in cases.items():
        middle, low, high = statistics.median(times.values()), min(times.values()), max(times.values())
        found.say(
            f"| {payload} | {label} | {backend} | {len(times)} | {middle:.4g} | {low:.4g} | {high:.4g} | {100 * (high - low) / middle:.1f}% |"
        )
    found.hold(
        bool(cases) and all(len(times) == len(devices) for times in cases.values()),
        f"every case was measured on all {len(devices)} devices",
    )
    own = {(m["payload"], m["label"], m["backend"], m["device"]["uuid"]): m for m in together.timed()}
    ratios, slow = [], []
    for m in alone.timed():
        other = own.get((m["payload"], m["label"], m["backend"], m["device"]["uuid"]))
        if other is None:
            continue
        ratios.append(other["timing"]["median_us"] / m["timing"]["median_us"])
        if ratios[-1] > 1 + SLOWER and not {"contended", "throttled"} & set(other["reasons"] or []):
            slow.append(f"{m['payload']} {m['label']} {m['backend']} ({ratios[-1]:.3f})")
    found.hold(
        bool(ratios) and statistics.median(ratios) <= 1 + SLOWER,
        f"the one device is {statistics.median(ratios or [0.0]):.3f} of its time alone while all work, over {len(ratios)} measurements",
    )
    found.hold(
        not slow, "no measurement is more than 2% slower without saying why: " + (", ".join(slow) or "none")
    )


def judge_scaling(together: Run, alone: Run, found: Findings) -> None:
    """Shares of the devices, and the time."""
    shares = Counter(dict.fromkeys(together.devices(), 0))
    shares.update(m["device"]["uuid"] for m in together.measurements if m["device"])
    mean = sum(shares.values()) / len(shares)
    for device, count in sorted(shares.items()):
        found.say(f"- {device}: {count} measurements")
    found.hold(
        all(abs(count - mean) <= SHARE * mean for count in shares.values()),
        f"each of {len(shares)} devices measured within 25% of the mean of {mean:.1f}",
    )
    bound = 1 / (EFFICIENCY * len(shares))
    together_s, alone_s = together.work_s(), alone.work_s()
    found.hold(
        together_s <= bound * alone_s,
        f"{together_s:.2f} s on {len(shares)} devices, {alone_s:.2f} s on one: {together_s / alone_s:.3f}, bound {bound:.3f}",
    )


def judge_gangs(run: Run, found: Findings) -> None:
    """Gangs of every size between single cases."""
    statuses = Counter(m["status"] for m in run.measurements)
    found.hold(set(statuses) <= {"ok", "unsupported"} and statuses["ok"] > 0, f"gangs ended {dict(statuses)}")
    measured = {m["case_id"] for m in run.measurements if m["status"] == "ok"}
    without = [c["label"] for c in run.document["plan"]["cases"] if c["id"] not in measured]
    found.hold(not without, "cases without a backend that is ok: " + (", ".join(without) or "none"))
    sizes = Counter((m["extra"] or {}).get("ranks", 1) for m in run.measurements if m["status"] == "ok")
    found.say(
        "- devices of a measurement: " + ", ".join(f"{n}: {count}" for n, count in sorted(sizes.items()))
    )
    busy = [h["busy_fraction"] for h in run.document["hosts"].values() if h.get("busy_fraction") is not None]
    found.hold(
        bool(busy) and min(busy) >= AT_WORK,
        f"devices at work {100 * min(busy or [0]):.0f}% of the time after the first import",
    )


def judge_crash(run: Run, found: Findings) -> None:
    """A broken context is one device's own matter."""
    statuses = Counter(m["status"] for m in run.measurements)
    found.hold(
        statuses["crashed"] == 1 and statuses["ok"] == len(run.measurements) - 1,
        f"one case crashed: {dict(statuses)}",
    )
    again = {device for device, workers in run.workers_by_device().items() if len(workers) > 1}
    where = {m["device"]["uuid"] for m in run.measurements if m["status"] == "crashed" and m["device"]}
    found.hold(
        again <= where,  # none where no case was left for that device
        f"other workers were needed only on the device of the crash ({', '.join(sorted(again)) or 'none was'})",
    )


def run_sweep(farbench: list[str], sweep: Path, host: str, sets: list[str]) -> Run:
    """Run a sweep with the real command and read it back; the run id is the first thing it prints."""
    options = [option for one in sets for option in ("--set", one)]
    print(f"{sweep} on {host} …", file=sys.stderr, flush=True)
    done = subprocess.run(
        [*farbench, "run", str(sweep), "--host", host, "--json", *options],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    if not done.stdout:
        sys.exit(
            f"{sweep} did not run on {host} (exit {done.returncode}): try `farbench run {sweep} --host {host}`"
        )
    outcome = json.loads(done.stdout)
    state = outcome["hosts"][host]
    if state["state"] != "ok":
        sys.exit(f"{host} is {state['state']}: {state['error']}")
    report = json.loads(
        subprocess.check_output([*farbench, "report", outcome["run_id"], "--format", "json"], text=True)
    )
    journal = Path(outcome["archive"]) / "hosts" / host / "events.jsonl"
    events = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    return Run(outcome["run_id"], report["run"], report["measurements"], events)


def main() -> int:
    """Run, judge, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("all", help="the host with all devices")
    parser.add_argument("one", help="the same machine with one device")
    parser.add_argument("--sweeps", default="eight", help="the first part of the sweeps' names")
    parser.add_argument("--set", action="append", default=[], help="passed on to every run")
    parser.add_argument("--archive", type=Path, help="where the runs are kept")
    parser.add_argument("--output", type=Path, help="a Markdown file to write as well")
    options = parser.parse_args()
    farbench = [sys.executable, "-m", "orchestrator"]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    if options.archive:
        os.environ["FARBENCH_ARCHIVE"] = str(options.archive.absolute())
    found = Findings()

    def both(judge: Callable[[Run, Run, Findings], None], sweep: Path) -> None:
        judge(
            run_sweep(farbench, sweep, options.all, options.set),
            run_sweep(farbench, sweep, options.one, options.set),
            found,
        )

    def once(judge: Callable[[Run, Findings], None], sweep: Path) -> None:
        judge(run_sweep(farbench, sweep, options.all, options.set), found)

    parts: dict[str, Callable[[Path], None]] = {
        "spread": lambda sweep: both(judge_spread, sweep),
        "scaling": lambda sweep: both(judge_scaling, sweep),
        "gangs": lambda sweep: once(judge_gangs, sweep),
        "crash": lambda sweep: once(judge_crash, sweep),
    }
    for name, part in parts.items():
        sweep = Path(f"{options.sweeps}-{name}.yaml")
        if sweep.exists():
            found.say(f"\n## {name}\n")
            part(sweep)
    if not found.lines:
        parser.error(
            f"this folder has none of {', '.join(f'{options.sweeps}-{name}.yaml' for name in parts)}"
        )
    text = "\n".join(found.lines) + "\n"
    print(text)
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    return 1 if found.broken else 0


if __name__ == "__main__":
    sys.exit(main())
