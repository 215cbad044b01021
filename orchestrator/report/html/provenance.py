"""Where a run's numbers come from: sweep, hosts, software, and how to repeat them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.report.build import Report
from orchestrator.report.html.blocks import Block, Cell, Column, Command, Facts, Log, Section, Table
from orchestrator.report.html.comparison import repeat_command
from orchestrator.wording import assignments, visible

SOURCE_CHARACTERS = 200_000


def sections(report: Report) -> list[Section]:
    """Environments and provenance, and the commands that repeat the run and each of its cases."""
    return [_provenance(report), _repeating(report)]


def _provenance(report: Report) -> Section:
    run = report.run
    facts = [
        ("Run", run.run_id),
        ("Sweep", run.sweep.name),
        ("Sweep file", run.sweep.path or ""),
        ("SHA-256 of the sweep", run.sweep.sha256 or ""),
        ("Placement", run.placement),
        ("State", report.state),
        ("Started", run.started_at or ""),
        ("Ended", run.ended_at or ""),
        ("Takes up", run.resumes or ""),
        ("Command", shlex.join(run.argv)),
        *((name, _text(version)) for name, version in run.versions.items()),
    ]
    blocks: list[Block] = [Facts([(name, visible(value, 2000)) for name, value in facts if value])]
    if run.sweep.source:
        blocks.append(Log("The sweep as it was read", _lines(run.sweep.source[:SOURCE_CHARACTERS])))
    blocks.append(_hosts(report))
    used: dict[str, set[str]] = {}
    for m in report.measurements:
        if m.environment_id:
            used.setdefault(m.environment_id, set()).add(m.host)
    for environment_id, environment in run.environments.items():
        on = ", ".join(sorted(used.get(environment_id, ()))) or "no result"
        items = [(visible(k, 200), visible(v, 2000)) for k, v in flattened(environment)]
        blocks.append(Facts(items, visible(f"Environment {environment_id} ({on})", 300)))
    return Section("Provenance", blocks)


def _hosts(report: Report) -> Table:
    rows: list[list[Cell | str | None]] = []
    for name, host in report.run.hosts.items():
        agent = host.agent or {}
        devices = ", ".join(f"{d.index}: {d.name} ({d.uuid})" for d in host.devices)
        state = host.state or "–"
        rows.append(
            [
                visible(name),
                Cell(visible(state), None, "good" if state == "ok" else "muted" if state == "–" else "bad"),
                visible(_text(agent.get("hostname"))),
                visible(" ".join(_text(agent.get(key)) for key in ("python", "version") if agent.get(key))),
                visible(devices, 4000),
                visible(host.error or "", 2000),
            ]
        )
    columns = [
        Column("Host"), Column("State"), Column("Its own name"), Column("The agent's Python"), Column("Devices", "prose"),
        Column("Error", "prose"),
    ]  # fmt: skip
    return Table("Hosts", columns, rows, search=len(rows) > 10)


def _repeating(report: Report) -> Section:
    run = report.run
    path = run.sweep.path or "SWEEP"
    blocks: list[Block] = [
        Command(shlex.join(["farbench", "run", visible(path)]), "The whole sweep, measured anew:")
    ]
    seen: dict[tuple[str, str], list[Cell | str | None]] = {}
    for m in report.measurements:
        if (m.case_id, m.backend) not in seen:
            params = visible(assignments(m.params), 400)
            seen[m.case_id, m.backend] = [
                visible(m.label, 200),
                visible(m.backend),
                params,
                visible(repeat_command(m)),
            ]
    columns = [
        Column("Case"),
        Column("Backend", choices=True),
        Column("Parameters", "prose"),
        Column("Command", "code"),
    ]
    table = Table("The command that repeats each case", columns, list(seen.values()), first=20)
    lead = (
        "Each command measures one backend of one case again on its host and device, and says whether the number came back. "
        "Without --run it makes a folder with the scripts, parameters and environment, and prints the command to run there by "
        "hand, without farbench."
    )
    return Section("Repeat", [*blocks, table], lead)


def flattened(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """`packages.torch: 2.9`, one line a value."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", _text(value)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _lines(text: str) -> str:
    return "\n".join(visible(line) for line in text.replace("\r\n", "\n").split("\n"))
