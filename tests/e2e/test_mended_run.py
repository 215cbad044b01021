"""What a user meets at the edges of a run: leaving early, full disks, odd file names, hosts that are not there."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Laptop
from tests.e2e.test_interrupts import CASES, first_line, journal, slow_sweep
from tests.faults.proxy import Proxy
from tests.support.sshd import Sshd
from tests.support.waiting import wait_for


def test_leaving_at_once_launches_the_hosts_first_and_says_the_truth(laptop: Laptop, host: Sshd) -> None:
    slow_sweep(laptop, host)
    process = laptop.start("run", "sweep.yaml")
    run_id = first_line(process)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=90)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    command = "attach" if "detached" in stderr else "resume"
    assert f"farbench {command} {run_id}" in stderr
    done = laptop.farbench(command, run_id, "--json")
    assert done.code == 0, done.stderr


def test_ctrl_c_while_the_sweep_is_read_says_so_and_leaves_no_run(laptop: Laptop, host: Sshd) -> None:
    laptop.hosts(host)
    os.mkfifo(laptop.folder / "sweep.yaml")
    process = laptop.start("run", "sweep.yaml")
    with open(laptop.folder / "sweep.yaml", "w"):  # opens once the command reads
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout, stderr) == (130, "", "interrupted\n")
    assert laptop.farbench("runs", "--json").json()["runs"] == []


def test_ctrl_c_while_the_command_is_still_loading_is_no_traceback(laptop: Laptop) -> None:
    loading = laptop.folder / "loading"
    os.mkfifo(loading)
    laptop.write("slow/typer.py", f"open({str(loading)!r}).read()\n")
    process = laptop.start("runs", PYTHONPATH=str(laptop.folder / "slow"))
    with loading.open("w"):
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout, stderr) == (130, "", "interrupted\n")


def test_leaving_waits_for_a_library_that_is_just_being_loaded(laptop: Laptop, host: Sshd) -> None:
    """Ended in the middle of C++, the process would abort."""
    slow_sweep(laptop, host)
    begun, let_go, loaded = (laptop.folder / name for name in ("begun", "let_go", "loaded"))
    os.mkfifo(let_go)
    laptop.write(
        "slow/duckdb.py",
        f"open({str(begun)!r}, 'w'); open({str(let_go)!r}).read(); open({str(loaded)!r}, 'w')\n",
    )
    process = laptop.start("run", "sweep.yaml", PYTHONPATH=str(laptop.folder / "slow"))
    wait_for(begun.exists, "the library to be loaded")
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    said = ""
    while "farbench cancel" not in said:
        said += process.stderr.readline()
    os.close(os.open(let_go, os.O_WRONLY | os.O_NONBLOCK))
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert loaded.exists()


def test_a_host_where_nothing_was_launched_is_named_with_the_way_on(
    laptop: Laptop, make_sshd: Callable[..., Sshd]
) -> None:
    there, away = make_sshd(), make_sshd()
    slow_sweep(laptop, there)
    with Proxy(away) as proxy:
        proxy.freeze()
        laptop.write(
            "known",
            f"{there.known_name} {there.host_public_key}\n[127.0.0.1]:{proxy.port} {away.host_public_key}\n",
        )
        hosts = json.loads((laptop.folder / "hosts.yaml").read_text())["hosts"]
        common = {"known_hosts": str(laptop.folder / "known")}
        hosts["h1"] |= common
        hosts["h2"] = {**hosts["h1"], "port": proxy.port, "identity_file": str(away.client_key)}
        laptop.write("hosts.yaml", json.dumps({"hosts": hosts}))
        process = laptop.start("run", "sweep.yaml")
        run_id = first_line(process)
        wait_for(lambda: '"case_started"' in journal(laptop, run_id), "the other host to begin")
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        while "not yet: h2" not in (line := process.stderr.readline()):
            assert line
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 130
        assert (
            f"interrupted before the run was started on h2. Start it there and follow it with: farbench resume {run_id}"
            in stderr
        )
        proxy.thaw()
        words = f"h2: the run was never started there; start it with: farbench resume {run_id}"
        assert laptop.farbench("status", run_id, "--json").json()["hosts"]["h2"]["error"] == words
        attached = laptop.farbench("attach", run_id, "--json")
        assert attached.json()["hosts"]["h2"]["error"] == words
        assert attached.json()["counts"] == {"ok": CASES, "lost": CASES}
        resumed = laptop.farbench("resume", run_id, "--json")
        assert resumed.json()["run_id"] == run_id
        assert resumed.json()["counts"] == {"ok": 2 * CASES}, resumed.stderr
        assert "host entries stored in the run; `farbench run` takes changed ones\n" in resumed.stderr


def test_leaving_a_run_that_has_ended_meanwhile_does_not_say_that_it_goes_on(
    laptop: Laptop, host: Sshd
) -> None:
    slow_sweep(laptop, host)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        laptop.hosts(host, port=silent.getsockname()[1])
        process = laptop.start("run", "sweep.yaml")
        first_line(process)
        connection, _ = silent.accept()
        assert process.stderr is not None
        assert process.stderr.readline() == "h1: connecting\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline().startswith("leaving as soon as")
        connection.sendall(b"SSH-1.5-ancient\r\n")
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "goes on" not in stderr
    assert "nothing was measured. Fix that, then run the sweep again.\n" in stderr


def test_ctrl_c_in_the_middle_of_generated_code_ends_with_the_exit_code(laptop: Laptop) -> None:
    loading = laptop.folder / "loading"
    os.mkfifo(loading)
    laptop.write("slow/typer.py", f"exec({f'open({str(loading)!r}).read()'!r})\n")
    process = laptop.start("runs", PYTHONPATH=str(laptop.folder / "slow"))
    with loading.open("w"):
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout, stderr) == (130, "", "interrupted\n")


INTERRUPTED_WHILE_KEEPING = """
import signal
from orchestrator.archive import OpenRun
from orchestrator.cli import app

append = OpenRun.append_events


def interrupted(run, *arguments):
    OpenRun.append_events = append
    signal.raise_signal(signal.SIGINT)
    return append(run, *arguments)


OpenRun.append_events = interrupted
app.main()
"""


def test_ctrl_c_while_a_result_is_being_kept_loses_none(laptop: Laptop, host: Sshd) -> None:
    slow_sweep(laptop, host, placement="replicate")
    hosts = json.loads((laptop.folder / "hosts.yaml").read_text())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hosts["hosts"]["h2"] = {**hosts["hosts"]["h1"], "port": silent.getsockname()[1]}
        laptop.write("hosts.yaml", json.dumps(hosts))
        script = laptop.write("interrupted.py", INTERRUPTED_WHILE_KEEPING)
        process = subprocess.Popen(
            [sys.executable, script, "run", "sweep.yaml"], cwd=laptop.folder, env=laptop.environ, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        run_id = first_line(process)
        wait_for(lambda: '"measurement"' in journal(laptop, run_id) or process.poll() is not None, "a result")
        silent.accept()[0].sendall(b"SSH-1.5-ancient\r\n")
        _, stderr = process.communicate(timeout=60)
    assert "leaving as soon as every host can go on alone (not yet: h2)" in stderr
    assert process.returncode == 130, stderr
    assert f"detached; the run goes on. Follow it again with: farbench attach {run_id}" in stderr
    assert laptop.farbench("resume", run_id, "--json").json()["counts"] == {"ok": CASES, "lost": CASES}


def test_however_often_ctrl_c_comes_the_way_back_is_named(laptop: Laptop, host: Sshd) -> None:
    slow_sweep(laptop, host)
    process = laptop.start("run", "sweep.yaml")
    run_id = first_line(process)
    process.send_signal(signal.SIGINT)
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.01)
    _, stderr = process.communicate(timeout=60)
    assert "Traceback" not in stderr
    assert f"farbench resume {run_id}" in stderr or f"farbench attach {run_id}" in stderr
    assert f"farbench cancel {run_id}" in stderr
    assert laptop.farbench("resume", run_id, "--json").json()["counts"] == {"ok": CASES}


@pytest.mark.parametrize("arguments", [["runs", "--json"], ["payloads"], ["--help"]])
def test_an_output_that_is_full_is_said(tmp_path: Path, arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator", *arguments], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "error: the output cannot be written: No space left on device\n"


def test_resume_does_not_wait_for_a_host_that_refuses_connections(laptop: Laptop, host: Sshd) -> None:
    slow_sweep(laptop, host)
    process = laptop.start("run", "sweep.yaml")
    run_id = first_line(process)
    process.kill()
    process.communicate()
    host.stop()
    done = laptop.farbench("resume", run_id, "--json")
    assert done.code == 3, done.stderr
    assert json.loads(done.stdout)["hosts"]["h1"]["state"] == "unreachable"
