"""Small things that users stumbled over."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from orchestrator.archive import RunDocument
from orchestrator.model import Device, Measurement, Status, Timing, Verdict
from orchestrator.report import render
from orchestrator.report.build import lay_out
from tests.e2e.conftest import Laptop
from tests.support.sshd import Sshd
from tests.support.waiting import wait_for


def test_columns_of_one_name_all_come_out(laptop: Laptop) -> None:
    done = laptop.farbench("query", "select 1 as a, 2 as a, 3 as a_1, 4 as a", "--format", "json")
    assert done.code == 0, done.stderr
    (row,) = done.json()["rows"]
    assert sorted(row.values()) == [1, 2, 3, 4]
    assert row["a"] == 1
    assert row["a_1"] == 3


def test_ctrl_c_ends_a_query(laptop: Laptop) -> None:
    process = laptop.start("query", "select count(*) from range(1000000000000) a where a.range % 7 = 3")
    wait_for(lambda: computes_beside_main(process.pid) or process.poll() is not None, "DuckDB to compute")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in stderr


def computes_beside_main(pid: int) -> bool:
    """Whether a thread other than the first has been at work: until the query runs, none has."""
    for task in Path(f"/proc/{pid}/task").glob("[0-9]*"):
        try:
            fields = (task / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        if task.name != str(pid) and int(fields[11]) > os.sysconf("SC_CLK_TCK") // 2:  # utime
            return True
    return False


def test_init_in_a_folder_names_a_command_that_works(laptop: Laptop) -> None:
    done = laptop.farbench("init", "sub")
    assert done.code == 0
    command = done.stderr.strip().splitlines()[-1].removeprefix("next: farbench ").split()
    assert laptop.farbench("plan", *command[1:]).code == 0


def test_an_unreadable_payload_hides_no_other(laptop: Laptop) -> None:
    (laptop.folder / "payloads" / "binary.py.j2").write_bytes(b"\xff\xfe\x00")
    done = laptop.farbench("payloads", "--json")
    assert done.code == 0
    assert "gemm_fp4" in {p["name"] for p in done.json()["payloads"]}
    assert "binary.py.j2" in done.stderr


def test_a_host_whose_payloads_could_not_start_is_not_ok(laptop: Laptop, host: Sshd) -> None:
    laptop.hosts(host, python="/nonexistent/python")
    done = laptop.farbench("hosts", "--json")
    assert done.code == 3
    assert done.json()["hosts"]["h1"]["state"] == "unusable"
    assert "/nonexistent/python" in done.json()["hosts"]["h1"]["error"]


def test_a_long_label_never_hides_what_tells_rows_apart() -> None:
    label = "a very long label " * 10
    devices = [Device(uuid=f"GPU-{i}", index=i, name="H200", compute_capability="9.0") for i in range(2)]
    document = RunDocument.model_validate(
        {"run_id": "r", "sweep": {"name": "s"}, "placement": "replicate_devices",
         "plan": {"cases": [{"id": "c", "label": label, "payload": "p", "backends": ["b"]}], "backends": ["b"]}}
    )  # fmt: skip
    results = [
        Measurement(run_id="r", host="h", device=d, case_id="c", label=label, payload="p", params={}, backend="b",
                    status=Status.OK, verdict=Verdict.VALID, timing=Timing(timer="graph", median_us=1.0, samples=9))
        for d in devices
    ]  # fmt: skip
    text = render(lay_out(document, "finished", results), "markdown")
    assert isinstance(text, str)
    assert "@ h:0" in text
    assert "@ h:1" in text
