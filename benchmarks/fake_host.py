"""A host that only talks: speaks the stub's protocol on its standard streams and sends a journal it makes up.

    python fake_host.py -c COMMAND      (as the login shell of an sshd; what the command is does not matter)

Every case is one measurement with a hundred samples among six events, as a real agent writes them.
"""

import json
import sys
import time

CPU = {"uuid": "cpu-0", "index": 0, "name": "made up", "compute_capability": None, "kind": "cpu"}


def events(run_id, host, items):
    """The lines of a journal."""
    t = 1_700_000_000.0

    def line(kind, **fields):
        nonlocal t
        t += 0.01
        return json.dumps({"t": t, "mono": t, "type": kind, **fields}).encode() + b"\n"

    yield line(
        "agent_started", run_id=run_id, host=host, pid=1, start_time=1, boot_id="b", nonce="n", offset=0
    )
    yield line("devices", devices=[CPU])
    yield line("queued", case_ids=[item["case_id"] for item in items], sealed=True, batch="000001.json")
    yield line(
        "worker_ready",
        worker="cpu0-001",
        devices=["cpu-0"],
        payload="noop",
        environment_id="e",
        environment={"a": 1},
    )
    for item in items:
        case = {"case_id": item["case_id"], "worker": "cpu0-001"}
        yield line("case_started", devices=["cpu-0"], attempt=1, **case)
        for phase in ("compile", "check", "measure"):
            yield line("phase", backend="noop", phase=phase, **case)
        samples = [10.0 + n / 1000 for n in range(100)]
        timing = {
            "timer": "host",
            "cache": "hot",
            "median_us": 10.05,
            "p20_us": 10.0,
            "p80_us": 10.1,
            "samples": 100,
        }
        record = {
            "schema_version": 1, "run_id": run_id, "host": host, "device": CPU, "attempt": 1, "duration_s": 0.1,
            "started_at": "2026-01-31T12:00:00.000Z", "environment_id": "e", "backend": "noop", "status": "ok",
            "verdict": "valid", "timing": timing, "samples_us": samples, "metrics": {"tflops": 1.0},
            **{key: item[key] for key in ("case_id", "label", "payload", "params")},
        }  # fmt: skip
        yield line("measurement", measurement=record, asked="noop")
        yield line("case_finished", devices=["cpu-0"], attempt=1, **case)
    yield line(
        "agent_finished", state="finished", counts={"ok": len(items)}, batch="000001.json", sealed=True
    )


def main():
    """Answer one launch."""
    source, out = sys.stdin.buffer, sys.stdout.buffer
    source.read(int(source.readline()))
    request = json.loads(source.readline() or sys.exit())
    if "command" not in request:  # we were called ahead
        request = json.loads(source.readline() or sys.exit())
    nonce, command = request["nonce"].encode(), request["command"]

    def send(body=b"", **message):
        out.write(nonce + b" " + json.dumps(message).encode() + b"\n" + body)
        out.flush()

    send(type="hello", missing=[], workdir="/w", python="python", version="3.11.0", uid=0, hostname="h", boot_id="b",
         time=time.time())  # fmt: skip
    send(type="launched", pid=1, already=False, run_dir="/w/runs/r")
    send(type="alive", agent=True, time=time.time(), behind=0)
    offset, held = 0, b""
    for line in events(command["run_id"], command["job"]["host"], command["queue"]):
        held += line
        if len(held) > 1 << 16:
            send(held, type="events", offset=offset, length=len(held))
            offset, held = offset + len(held), b""
    send(held, type="events", offset=offset, length=len(held))
    send(type="end", state="finished", offset=offset + len(held), sealed=True, reason=None)


if __name__ == "__main__":
    main()
