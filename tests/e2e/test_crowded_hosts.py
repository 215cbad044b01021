"""Hosts that take few logins and few commands at once: the real command loses no case."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from tests.e2e.conftest import TIMEOUT_S, Laptop
from tests.support.link import SlowLink
from tests.support.sshd import Sshd
from tests.support.waiting import wait_for

BENCH = "import json, sys\nprint(json.dumps({'time_us': 5, 'n': int(sys.argv[1])}))\n"


def sweep(cases: int, **more: object) -> str:
    payload = {"script": "bench.py", "args": ["{{ n }}"], "results": "json_lines"}
    return json.dumps({"name": "crowd", "payload": payload, "matrix": {"n": list(range(cases))}, **more})


def test_sixteen_hosts_behind_a_server_that_drops_the_third_login(
    laptop: Laptop, make_sshd: Callable[..., Sshd]
) -> None:
    server = make_sshd(MaxStartups="2:100:2")
    entry = {
        "address": server.address, "port": server.port, "user": server.user, "identity_file": str(server.client_key),
        "known_hosts": str(server.known_hosts), "python": sys.executable, "devices": {"cpu": 1}
    }  # fmt: skip
    hosts = {f"h{n}": {**entry, "workdir": f"~/farbench{n}"} for n in range(16)}
    laptop.write("hosts.yaml", json.dumps({"hosts": hosts}))
    laptop.write("bench.py", BENCH)
    laptop.write("sweep.yaml", sweep(1, placement="replicate"))
    done = laptop.farbench("run", "sweep.yaml", "--json")
    assert done.code == 0, done.stderr
    assert done.json()["counts"] == {"ok": 16}
    assert {host["state"] for host in done.json()["hosts"].values()} == {"ok"}


def test_eight_workers_on_a_host_of_two_sessions(laptop: Laptop, make_sshd: Callable[..., Sshd]) -> None:
    server = make_sshd(MaxSessions=2)
    laptop.hosts(server, devices={"cpu": 8})
    laptop.write("bench.py", BENCH)
    laptop.write("sweep.yaml", sweep(24))
    done = laptop.farbench("run", "sweep.yaml", "--json")
    assert done.code == 0, done.stderr
    assert done.json()["counts"] == {"ok": 24}
    assert {record["device"]["uuid"] for record in laptop.measurements()} <= {f"cpu-{n}" for n in range(8)}


def test_a_link_that_is_silent_beyond_the_bound_is_given_up_and_followed_again(
    laptop: Laptop, host: Sshd
) -> None:
    """The bound is ServerAliveInterval × ServerAliveCountMax; the agent goes on meanwhile, and no case counts as failed."""
    with SlowLink((host.address, host.port)) as link:
        host.known_hosts.write_text(f"[127.0.0.1]:{link.port} {host.host_public_key}\n")
        laptop.write(
            "ssh_config", "Host *\n  ServerAliveInterval 1\n  ServerAliveCountMax 2\n  ConnectTimeout 2\n"
        )
        laptop.hosts(host, port=link.port, devices={"cpu": 1}, ssh_config="ssh_config")
        laptop.write("bench.py", BENCH.replace("print(", "import time; time.sleep(0.3)\nprint("))
        laptop.write("sweep.yaml", sweep(8))
        process = laptop.start("run", "sweep.yaml", "--json")
        wait_for(lambda: link.counts.received > 10_000, "the run to be under way")
        link.stall()
        wait_for(lambda: link.counts.connections > 1, "another connection")
        link.stall(False)
        stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, stderr
    assert json.loads(stdout)["counts"] == {"ok": 8}
