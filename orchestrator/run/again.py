"""A new run of what a complete one lacks: its lost and cancelled measurements, and on request those that failed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

from orchestrator.archive import Archive, RunFolder, read_document, read_results
from orchestrator.errors import NothingToDo, UsageError
from orchestrator.inventory import resolve_environment
from orchestrator.model import Status
from orchestrator.run import launchfile, record
from orchestrator.run.launchfile import Launch
from orchestrator.run.start import Prepared, create, new_nonce
from orchestrator.run.takeup import script_files


def prepare_again(
    archive: Archive,
    folder: RunFolder,
    *,
    retry: Sequence[str],
    environ: Mapping[str, str],
    argv: Sequence[str],
    clock: Callable[[], float] = time.time,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> Prepared:
    """A run, ready to be carried out, of the measurements of `folder` that have no result or a status in `retry`.

    Raises `NothingToDo` when there is none, `UsageError` for a status that does not exist.
    """
    known = [str(status) for status in Status]
    for status in retry:
        if status not in known:
            raise UsageError(f"--retry {status}: no such status; there are: {', '.join(known)}")
    wanted: dict[str, dict[str, list[str]]] = {}  # host -> case -> backends
    for m in read_results(folder):
        if not m.status.is_result or m.status in retry:
            backends = wanted.setdefault(m.host, {}).setdefault(m.case_id, [])
            if m.backend not in backends:
                backends.append(m.backend)
    if not wanted:
        raise NothingToDo(
            f"run {folder.run_id} has a result for every measurement; nothing is left to resume"
        )

    before = launchfile.read(folder.path)
    document = read_document(folder.run_json).as_json()
    run_id = archive.next_id(clock, random_bytes)
    by_case: dict[str, list[str]] = {}
    for hand in wanted.values():
        for case_id, backends in hand.items():
            known_backends = by_case.setdefault(case_id, [])
            known_backends += [b for b in backends if b not in known_backends]
    sharded = before.hands is None
    hosts = before.hosts if sharded else {name: before.hosts[name] for name in wanted}
    launch = Launch(
        run_id=run_id,
        hosts=hosts,
        jobs={
            name: {**before.jobs[name], "run_id": run_id, "nonce": new_nonce(), "wait_for_devices": True}
            for name in hosts
        },
        items={c: {**before.items[c], "backends": backends} for c, backends in by_case.items()},
        hands=None if sharded else wanted,
        lost_after_s=before.lost_after_s,
    )
    plan = document["plan"]
    plan["cases"] = [
        {**case, "backends": by_case[case["id"]]} for case in plan["cases"] if case["id"] in by_case
    ]
    if sharded:
        plan["placements"] = [
            {**p, "backends": by_case[p["case"]]} for p in plan["placements"] if p["case"] in by_case
        ]
    else:
        plan["placements"] = [
            {"case": case_id, "host": host, "backends": backends}
            for host, hand in wanted.items()
            for case_id, backends in hand.items()
        ]
    plan["expected"] = record.known_beforehand(
        document["placement"], sum(len(backends) for hand in wanted.values() for backends in hand.values())
    )
    fresh = {key: document[key] for key in ("schema_version", "sweep", "placement", "plan")} | {
        "run_id": run_id,
        "hosts": {name: {} for name in hosts},
        "versions": record.versions(),
        "state": "running",
        "started_at": record.utc(clock()),
        "resumes": folder.run_id,
        "argv": list(argv),
    }
    secrets = {name: resolve_environment(spec, environ).secrets for name, spec in hosts.items()}
    return create(archive, launch, fresh, dict(script_files(folder.scripts)), secrets)
