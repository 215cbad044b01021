"""`farbench doctor` from outside, on real sshd's with fake GPUs."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.doctor import examine
from orchestrator.inventory import load_inventory
from orchestrator.transport.open import Connections
from tests.e2e.conftest import Laptop
from tests.support.places import Place, namespaces_work
from tests.support.sshd import Sshd, make_key

from .conftest import HEALTHY, GpuHost

Make = Callable[..., Sshd]
FIT = {"torch": "2.9.1", "sgl_kernel": "0.3.21", "flashinfer_python": "0.7.4", "flashinfer_cubin": "0.7.4"}


def states(checks: dict[str, dict[str, Any]], *but: str) -> dict[str, str]:
    # How busy the machine of the tests is, is not the tests' business.
    return {
        name: check["state"]
        for name, check in checks.items()
        if name not in ("load", *but) and check["state"] != "ok"
    }


def test_a_healthy_gpu_host(gpu_host: GpuHost) -> None:
    gpu_host.installed(**FIT)
    done, checks = gpu_host.doctor()
    assert states(checks) == {}
    assert done.code == 0
    assert done.json()["hosts"]["h1"]["usable"] is True
    assert done.json()["hosts"]["h1"]["elapsed_s"] < 60
    assert checks["connect"]["found"] == f"127.0.0.1 port {gpu_host.server.port}"
    assert checks["devices"]["found"] == "1 × NVIDIA RTX PRO 6000"
    assert checks["driver"]["found"] == "580.65.06; compute capability 12.0"
    assert checks["gpu settings"]["found"] == "persistence on, ECC on"
    assert checks["gpu clocks"]["found"] == "SM 180 of 3090 MHz, 31 °C"
    assert checks["gpu use"]["found"] == "nobody else"
    assert checks["torch"]["found"] == "2.9.1 (CUDA 12.8)"
    assert checks["flashinfer"]["found"] == "0.7.4, flashinfer-cubin 0.7.4"
    assert checks["sgl_kernel"]["found"] == "sgl-kernel 0.3.21, built for torch 2.9"
    assert checks["cuda compiler"]["found"] == f"nvcc 12.9 ({gpu_host.bin / 'nvcc'})"
    assert checks["shell"]["found"].startswith("/")
    assert checks["round trip"]["found"].endswith(" ms")
    left = [path.name for path in gpu_host.server.home.rglob("*") if "doctor" in path.name]
    assert left == [], "nothing is left behind"
    assert os.listdir(gpu_host.server.home / "farbench/runs") == []


def test_a_kernel_library_for_another_torch_is_named_as_that(gpu_host: GpuHost) -> None:
    gpu_host.installed("13.0", torch="2.11.0", sgl_kernel="0.3.21")
    done, checks = gpu_host.doctor()
    assert done.code == 1
    assert done.json()["hosts"]["h1"]["usable"] is True, "other backends can still be measured"
    assert states(checks, "flashinfer") == {"sgl_kernel": "failed", "cuda compiler": "warning"}
    assert checks["sgl_kernel"]["found"] == (
        "sgl-kernel 0.3.21 is built for torch 2.9, and torch 2.11.0 is installed: their binary interfaces differ "
        "(it would fail with an undefined symbol)"
    )
    assert "farbench setup h1 --profile fp4-sgl" in checks["sgl_kernel"]["fix"]
    text = gpu_host.laptop.farbench("doctor")
    assert "h1: sgl_kernel failed: sgl-kernel 0.3.21 is built for torch 2.9" in text.stdout
    assert "to fix: install torch 2.9" in text.stdout


def test_gpus_that_would_spoil_numbers(gpu_host: GpuHost) -> None:
    slow = {
        **HEALTHY,
        "persistence_mode": "Disabled",
        "clocks_event_reasons.active": "0x48",
        "temperature.gpu": 92,
    }
    other = {
        **HEALTHY,
        "index": 1,
        "uuid": "GPU-bbbb",
        "ecc.mode.current": "Disabled",
        "memory.used": 40000,
        "utilization.gpu": 97,
    }
    me = os.getpid()
    apps = (
        {
            "gpu_uuid": "GPU-aaaa",
            "pid": me,
            "used_memory": 1200,
            "process_name": os.readlink("/proc/self/exe"),
        },
    )
    gpu_host.gpus(slow, other, apps=apps)
    gpu_host.installed(**FIT)
    done, checks = gpu_host.doctor()
    assert done.code == 0, "warnings are no failures"
    assert checks["gpu settings"]["state"] == "warning"
    assert "GPU 0: persistence mode off" in checks["gpu settings"]["found"]
    assert "GPU 0: ECC on, off on the others" in checks["gpu settings"]["found"]
    assert "sudo nvidia-smi -pm 1" in checks["gpu settings"]["fix"]
    assert checks["gpu clocks"]["found"] == (
        "GPU 0: slowed down now: hardware slowdown, too hot (hardware thermal slowdown); 92 °C"
    )
    assert f"(pid {me}" in checks["gpu use"]["found"]
    assert "1200 MiB)" in checks["gpu use"]["found"]
    assert "GPU 1: 97% busy, 40000 MiB held by nobody who can be seen from here" in checks["gpu use"]["found"]


def test_an_old_driver_knows_fewer_fields(gpu_host: GpuHost) -> None:
    old = {
        key: value
        for key, value in HEALTHY.items()
        if key not in ("compute_cap", "clocks_event_reasons.active")
    }
    gpu_host.gpus({**old, "driver_version": "470.57", "clocks_throttle_reasons.active": "0x8"})
    gpu_host.installed("13.0", torch="2.11.0")
    _, checks = gpu_host.doctor()
    assert "hardware slowdown" in checks["gpu clocks"]["found"]
    assert checks["torch"]["state"] == "failed"
    assert checks["torch"]["found"] == "2.11.0 (CUDA 13.0) needs driver 580 or later, and 470.57 is loaded"


def test_a_driver_that_hangs_holds_nothing_else_up(gpu_host: GpuHost) -> None:
    gpu_host.gpus(hangs_s=1000)
    started = time.monotonic()
    done, checks = gpu_host.doctor()
    assert time.monotonic() - started < 60
    assert done.code == 3
    assert checks["devices"]["state"] == "failed"
    assert "the driver hangs" in checks["devices"]["found"]
    assert checks["workdir"]["state"] == "ok"
    assert checks["payload python"]["state"] == "ok"


def test_a_broken_driver_says_what_it_says(gpu_host: GpuHost) -> None:
    gpu_host.gpus(broken="Failed to initialize NVML: Driver/library version mismatch\x1b[2J")
    done, checks = gpu_host.doctor()
    assert done.code == 3
    assert "Driver/library version mismatch" in checks["devices"]["found"]
    assert "\x1b" not in done.stdout + gpu_host.laptop.farbench("doctor").stdout


@pytest.mark.parametrize("said", ["[GPU is lost]", "ERR!"])
def test_a_gpu_that_tells_an_error_instead_of_values(said: str, gpu_host: GpuHost) -> None:
    gpu_host.gpus({**HEALTHY, "temperature.gpu": said, "driver_version": said, "power.draw": "[N/A]"})
    gpu_host.installed("13.0", torch="2.11.0")
    _, checks = gpu_host.doctor()
    assert checks["gpu settings"]["state"] == "warning"
    assert f"temperature.gpu: {said.strip('[]')}" in checks["gpu settings"]["found"]
    assert "power.draw" not in checks["gpu settings"]["found"]
    assert "dmesg" in checks["gpu settings"]["fix"]
    assert checks["driver"]["found"].startswith("unknown;")
    assert checks["torch"]["state"] == "ok"


def test_a_gpu_in_mig_mode_without_slices(gpu_host: GpuHost) -> None:
    gpu_host.script(
        "nvidia-smi",
        '#!/bin/sh\ncase "$*" in *-L*) echo "GPU 0: NVIDIA H200 (UUID: GPU-aaaa)";;\n'
        '*) echo "0, GPU-aaaa, 00000000:01:00.0, Enabled, 9.0, NVIDIA H200";; esac\n',
    )
    done, checks = gpu_host.doctor()
    assert done.code == 3
    assert checks["devices"]["found"] == "GPU 0 (GPU-aaaa) is in MIG mode and has no slices"
    assert "nvidia-smi mig -cgi" in checks["devices"]["fix"]


def test_a_tool_that_dies_of_a_signal(gpu_host: GpuHost) -> None:
    gpu_host.script("nvidia-smi", "#!/bin/sh\nkill -SEGV $$\n")
    _, checks = gpu_host.doctor()
    assert "killed by signal 11 (SIGSEGV)" in checks["devices"]["found"]


@pytest.mark.parametrize(
    "answer",
    [
        '"[" * 100000',
        '\'{"distributions": {"torch": "x", "sgl-kernel": "0.3.21"}, "torch_cuda": "x", "version": [1], "path": 2, "setup": []}\'',
        "'7'",
    ],
)
def test_an_interpreter_that_answers_nonsense_holds_nothing_else_up(answer: str, gpu_host: GpuHost) -> None:
    gpu_host.script("python", f"#!{sys.executable}\nimport sys\nprint(sys.argv[3] + {answer})\n")
    gpu_host.laptop.hosts(gpu_host.server, env=gpu_host.environ, python=str(gpu_host.bin / "python"))
    done, checks = gpu_host.doctor()
    assert "Traceback" not in done.stderr
    assert checks["payload python"]["state"] != "skipped"
    assert checks["workdir"]["state"] == "ok"
    assert checks["devices"]["state"] == "ok"


def test_the_temporary_folder_is_the_one_that_payloads_get(gpu_host: GpuHost) -> None:
    mine = gpu_host.server.folder / "scratch"
    mine.mkdir()
    gpu_host.laptop.hosts(gpu_host.server, env={**gpu_host.environ, "TMPDIR": str(mine)})
    _, checks = gpu_host.doctor()
    assert checks["tmp"]["found"].startswith(f"{mine}, ")
    mine.rmdir()
    _, checks = gpu_host.doctor()
    assert (checks["tmp"]["state"], checks["tmp"]["found"]) == (
        "failed",
        f"{mine}: No such file or directory",
    )


def test_a_disk_too_full_for_the_agent_is_the_work_folders_fault(
    laptop: Laptop, make_sshd: Make, tmp_path: Path
) -> None:
    full = tmp_path / "full"
    full.mkdir()
    place = Place(tmp_path, [f"mount -t tmpfs -o size=64k tmpfs '{full}'"]) if namespaces_work() else None
    server = make_sshd(shell=place.shell if place is not None else "/bin/bash")
    laptop.hosts(server, workdir=str(full) if place is not None else "/dev/null/work")
    for _ in range(3):  # the 10 s may run out on a machine that is busy with other tests
        done = laptop.farbench("doctor", "--json")
        (failed,) = [c for c in done.json()["hosts"]["h1"]["checks"] if c["state"] == "failed"]
        if "no answer within" not in failed["found"]:
            break
    if place is not None:
        place.close()
    assert failed["name"] == "workdir", failed
    assert ("No space left on device" if place is not None else "Not a directory") in failed["found"]


def test_devices_that_do_not_exist(gpu_host: GpuHost) -> None:
    gpu_host.laptop.hosts(gpu_host.server, env=gpu_host.environ, devices=[7])
    done, checks = gpu_host.doctor()
    assert done.code == 3
    assert "names no device of this host: it has 0: NVIDIA RTX PRO 6000" in checks["devices"]["found"]


def test_a_host_without_gpus(laptop: Laptop, host: Sshd) -> None:
    laptop.hosts(host, env={"FARBENCH_NVML_LIBRARY": ""}, devices={"cpu": 2})
    done = laptop.farbench("doctor", "--json")
    checks = {check["name"]: check for check in done.json()["hosts"]["h1"]["checks"]}
    assert done.code == 0
    assert checks["devices"]["found"].startswith("2 × ")
    assert {checks[name]["state"] for name in ("driver", "gpu settings", "gpu clocks", "gpu use")} == {
        "skipped"
    }


def test_what_login_scripts_print_is_named_and_inert(laptop: Laptop, host: Sshd) -> None:
    (host.home / ".bashrc").write_text("printf 'Welcome \\033]0;owned\\007 to gpu1\\n'\n")
    laptop.hosts(host)
    done = laptop.farbench("doctor")
    assert (
        "login scripts print 27 bytes on standard output, such as 'Welcome ]0;owned to gpu1'" in done.stdout
    )
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("changes", "name", "found"),
    [
        (
            {"python": "/no/such/python"},
            "payload python",
            "/no/such/python cannot be started: No such file or directory",
        ),
        ({"activate": "exit 4"}, "payload python", "`activate`: /bin/sh ended with exit code 4"),
        ({"workdir": "/dev/null/work"}, "workdir", "Not a directory"),
        ({"env": {"TOKEN": {"from_env": "NO_SUCH_TOKEN"}}}, "env", "NO_SUCH_TOKEN"),
    ],
)
def test_settings_that_keep_every_measurement_from_running(
    changes: dict[str, Any], name: str, found: str, laptop: Laptop, host: Sshd
) -> None:
    laptop.hosts(host, **changes)
    done = laptop.farbench("doctor", "--json")
    assert done.code == 3
    (check,) = [check for check in done.json()["hosts"]["h1"]["checks"] if check["name"] == name]
    assert check["state"] == "failed"
    assert found in check["found"]
    assert check["fix"]


def reach(done: Any, host: str = "h1") -> tuple[list[str], dict[str, Any]]:
    """(the steps that went well, the step that failed)."""
    checks = done.json()["hosts"][host]["checks"][:7]
    good = [check["name"] for check in checks if check["state"] == "ok"]
    (bad,) = [check for check in checks if check["state"] == "failed"]
    assert all(check["state"] == "skipped" for check in checks[len(good) + 1 :])
    return good, bad


def test_a_changed_host_key(laptop: Laptop, host: Sshd) -> None:
    laptop.hosts(host)
    host.regenerate_host_key()
    host.restart()
    done = laptop.farbench("doctor", "--json")
    assert done.code == 3
    good, bad = reach(done)
    assert good == ["ssh config", "resolve", "connect", "key exchange"]
    assert bad["name"] == "host key"
    assert "THE HOST KEY HAS CHANGED" in bad["found"]
    assert "ssh-keygen -R" in bad["fix"]


def test_a_key_that_is_not_accepted(laptop: Laptop, host: Sshd) -> None:
    make_key(host.client_key)
    laptop.hosts(host)
    good, bad = reach(laptop.farbench("doctor", "--json"))
    assert good[-1] == "host key"
    assert bad["name"] == "authentication"


def test_a_server_that_says_nothing_costs_no_more_than_its_time(laptop: Laptop, host: Sshd) -> None:
    laptop.hosts(host)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        held: list[socket.socket] = []
        threading.Thread(target=lambda: held.append(silent.accept()[0]), daemon=True).start()
        entries = json.loads((laptop.folder / "hosts.yaml").read_text())
        entries["hosts"]["silent"] = {"address": "127.0.0.1", "port": silent.getsockname()[1]}
        laptop.write("hosts.yaml", json.dumps(entries))
        done = laptop.farbench("doctor", "--json")
    assert done.code == 1, "the other host is well"
    assert done.json()["hosts"]["h1"]["usable"] is True
    good, bad = reach(done, "silent")
    assert good == ["ssh config", "resolve", "connect"]
    assert bad["name"] == "key exchange"
    assert bad["found"] == "no answer within 10 s"
    assert done.json()["hosts"]["silent"]["elapsed_s"] < 30


@pytest.mark.parametrize("lines", ["sleep 20", "echo welcome; sleep 20", "exec cat"])
def test_a_login_shell_that_hangs_is_told_and_the_host_is_not_usable(
    lines: str, make_sshd: Make, user_environ: dict[str, str], tmp_path: Path
) -> None:
    shell = tmp_path / "shell"
    shell.write_text(f"#!/bin/sh\n{lines}\n")
    shell.chmod(0o755)
    server = make_sshd(shell=str(shell))
    entry = {
        "address": "127.0.0.1", "port": server.port, "user": server.user, "identity_file": str(server.client_key),
        "known_hosts": str(server.known_hosts), "ssh_config": "/dev/null",
    }  # fmt: skip
    (tmp_path / "hosts.yaml").write_text(json.dumps({"hosts": {"h1": entry}}))
    hosts = list(load_inventory(tmp_path / "hosts.yaml").hosts.values())
    with Connections(environ=user_environ) as connections:
        (found,) = examine(hosts, connections.transport, environ=user_environ, limit_s=2.0)
    by_name = {check.name: check for check in found.checks}
    assert not found.usable
    assert by_name["authentication"].state.value == "ok"
    assert (by_name["exec"].state.value, by_name["exec"].found) == ("failed", "no answer within 2 s")


def test_hosts_side_by_side_and_one_that_is_not_there(laptop: Laptop, make_sshd: Callable[..., Sshd]) -> None:
    first, gone = make_sshd(), make_sshd()
    laptop.hosts(first, gone)
    gone.stop()
    done = laptop.farbench("doctor")
    assert done.code == 1
    header = next(line for line in done.stdout.splitlines() if "check" in line)
    assert "h1 (" in header
    assert "h2 (" in header
    assert "h2: connect failed: 127.0.0.1 port" in done.stdout
    assert "Connection refused" in done.stdout
    assert "h2 cannot be used" in done.stdout
    only = laptop.farbench("doctor", "h2")
    assert only.code == 3
    assert laptop.farbench("doctor", "h3").code == 2


def test_the_interpreter_that_setup_made_is_known(laptop: Laptop, host: Sshd, tmp_path: Path) -> None:
    import subprocess
    import sys

    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    (tmp_path / "env/freeze.json").write_text(json.dumps({"name": "mine", "profile": "fp4-sgl"}))
    laptop.hosts(host, python=str(tmp_path / "env/bin/python"))
    done = laptop.farbench("doctor")
    assert "environment mine made by farbench setup from fp4-sgl" in " ".join(done.stdout.split())
