"""Mistakes a user can make: one clear message that says where, the documented exit code, no traceback, nothing lost."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable

import pytest

from tests.e2e.conftest import Finished, Laptop
from tests.e2e.templates import SLEEPY
from tests.support.sshd import Sshd, free_port, make_key

LOCAL = "hosts:\n  local: {embedded: true}\n"
GOOD = "name: s\npayload: sleepy\nmatrix: {i: [1]}\nbackends: [one]\n"


def refused(done: Finished, code: int, *words: str) -> None:
    assert done.code == code, (done.code, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr, done.stderr


@pytest.fixture
def desk(laptop: Laptop) -> Laptop:
    laptop.write("hosts.yaml", LOCAL)
    laptop.write("payloads/sleepy.py.j2", SLEEPY)
    return laptop


@pytest.mark.parametrize(
    ("sweep", "words"),
    [
        (GOOD + "backend: [one]\n", ["sweep.yaml:5:", "backend", "did you mean", "backends"]),
        (GOOD + "timeout_s: soon\n", ["sweep.yaml:5:", "timeout_s"]),
        (GOOD + "measure: {min_time_ms: [1]}\n", ["sweep.yaml:5:", "min_time_ms"]),
        ("name: s\npayload: sleepy\nmatrix:\n  i: [1]\n  i: [2]\nbackends: [one]\n", ["sweep.yaml:5:", "i"]),
        ("name: s\npayload: sleepy\nmatrix: {i: []}\nbackends: [one]\n", ["sweep.yaml:3:", "i"]),
        (GOOD.replace("sleepy", "sleppy"), ["sweep.yaml:2:", "sleppy", "sleepy"]),
        (GOOD.replace("[one]", "[onne]"), ["sweep.yaml:4:", "onne", "one"]),
        (GOOD.replace("i: [1]", "i: [1], secs: [2]"), ["sweep.yaml:3:", "secs"]),
        (GOOD.replace("i: [1]", "seconds: [1.0]"), ["sweep.yaml", "needs the parameter 'i'"]),
        (GOOD.replace("i: [1]", "i: [x]"), ["sweep.yaml:3:", "'i'"]),
        (GOOD + "exclude: [{where: \"ii > 3\"}]\n", ["sweep.yaml:5:", "ii"]),
        (GOOD + "baseline: two\n", ["sweep.yaml:5:", "two"]),
        (GOOD + "hosts: [nowhere]\n", ["sweep.yaml:5:", "nowhere", "local"]),
        (GOOD + "\tx: 1\n", ["sweep.yaml:5:"]),
    ],
)  # fmt: skip
def test_a_wrong_sweep(desk: Laptop, sweep: str, words: list[str]) -> None:
    desk.write("sweep.yaml", sweep)
    refused(desk.farbench("run", "sweep.yaml"), 2, *words)
    assert not (desk.folder / "archive").exists()


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("import json\nCASES = json.loads({{ casses | literal }})\n", ["bad.py.j2:2:", "casses"]),
        ("x = 1\n{% if %}\n", ["bad.py.j2:2:"]),
        ("x = {{ cases }}\n", ["bad.py.j2", "literal"]),
        ("def f(:\n    pass\n", ["bad.py.j2", "line 1"]),
    ],
)
def test_a_wrong_template_is_named_before_anything_is_uploaded(
    desk: Laptop, host: Sshd, template: str, words: list[str]
) -> None:
    desk.hosts(host)
    desk.write("payloads/bad.py.j2", template)
    desk.write("sweep.yaml", GOOD.replace("sleepy", "bad"))
    refused(desk.farbench("run", "sweep.yaml"), 2, *words)
    assert not (host.home / "farbench").exists()


def test_files_that_are_not_there(desk: Laptop) -> None:
    refused(desk.farbench("run", "nothing.yaml"), 2, "nothing.yaml")
    desk.write("sweep.yaml", GOOD)
    refused(
        desk.farbench("run", "sweep.yaml", "--hosts-file", "no-hosts.yaml"),
        2,
        "no-hosts.yaml",
        "farbench init",
    )
    refused(desk.farbench("report", "latest"), 2, "no run")
    refused(desk.farbench("run", "sweep.yaml", "--host", "gpu9"), 2, "gpu9", "local")
    refused(desk.farbench("run", "sweep.yaml", "--only", "nothing*"), 4, "nothing*")
    refused(desk.farbench("run", "sweep.yaml", "--set", "ii=[1]"), 2, "ii")
    refused(desk.farbench("query", "select * from reslts"), 2, "reslts")


def no_such_host(host: Sshd, desk: Laptop) -> list[str]:
    desk.hosts(host, address="does-not-exist.invalid")
    return ["h1", "does-not-exist.invalid"]


def refused_connection(host: Sshd, desk: Laptop) -> list[str]:
    desk.hosts(host, port=free_port())
    return ["h1", "connect", "refused"]


def wrong_key(host: Sshd, desk: Laptop) -> list[str]:
    make_key(desk.folder / "other")
    desk.hosts(host, identity_file=str(desk.folder / "other"))
    return ["h1", "authentication"]


def unknown_host_key(host: Sshd, desk: Laptop) -> list[str]:
    (desk.folder / "known").touch()
    desk.hosts(host, known_hosts=str(desk.folder / "known"))
    return ["h1", "host key", "SHA256:", "known"]


def changed_host_key(host: Sshd, desk: Laptop) -> list[str]:
    desk.hosts(host)
    host.stop()
    host.regenerate_host_key()
    host.start()
    return ["h1", "HAS CHANGED", "SHA256:", f"{host.known_hosts}:1"]


@pytest.mark.parametrize(
    "spoil",
    [no_such_host, refused_connection, wrong_key, unknown_host_key, changed_host_key],
    ids=lambda f: f.__name__,
)
def test_a_host_that_cannot_be_used(
    desk: Laptop, host: Sshd, spoil: Callable[[Sshd, Laptop], list[str]]
) -> None:
    words = spoil(host, desk)
    desk.write("sweep.yaml", GOOD)
    done = desk.farbench("run", "sweep.yaml", "--json")
    refused(done, 3, *words)
    document = json.loads(done.stdout)
    assert document["counts"] == {"lost": 1}
    assert document["hosts"]["h1"]["state"] in ("unreachable", "refused", "unusable")
    assert document["hosts"]["h1"]["error"]


@pytest.mark.parametrize("archive", ["archive", "an/open/archive"])
def test_what_is_wrong_with_the_only_host_is_said_once(desk: Laptop, host: Sshd, archive: str) -> None:
    first, *_ = wrong_key(host, desk)
    desk.write("sweep.yaml", GOOD)
    desk.environ["FARBENCH_ARCHIVE"] = archive
    done = desk.farbench("run", "sweep.yaml")
    assert done.code == 3
    assert len(done.stdout.splitlines()) == 1, "the run id, and no table of nothing"
    said = done.stderr.splitlines()
    assert [line.split(":")[0] for line in said[:1]] == [first]
    assert said[1].startswith("  does `ssh ")
    run_id = done.stdout.strip()
    assert said[2:] == [
        "no host could be used, and nothing was measured. Fix that, then run the sweep again.",
        f"the run is kept, without a result; to remove it: farbench runs --prune {run_id} --yes",
    ]
    again = desk.farbench("attach")
    assert (again.code, again.stderr.splitlines()) == (3, said)
    assert desk.farbench(*said[-1].partition("farbench ")[2].split()).code == 0
    assert desk.farbench("runs", "--json").json() == {"runs": []}


def test_a_python_that_is_not_there_is_said_once_for_its_host(desk: Laptop, host: Sshd) -> None:
    desk.hosts(host, python="/nonexistent/python")
    desk.write("sweep.yaml", GOOD)
    done = desk.farbench("run", "sweep.yaml", "--json")
    refused(
        done, 3, "/nonexistent/python, which `python:` names in hosts.yaml, is not there", "farbench doctor"
    )
    found = done.json()
    assert (found["counts"], found["hosts"]["h1"]["state"]) == ({"lost": 1}, "unusable")
    assert "measured" not in done.stderr, "no case was tried"
    # A program that needs no Python runs all the same.
    desk.write("bench.sh", "#!/bin/sh\necho '{\"median_us\": 5}'\n").chmod(0o755)
    desk.write("sweep.yaml", "payload: {script: bench.sh}\nmatrix: {m: [1]}\n")
    assert desk.farbench("run", "sweep.yaml", "--json").json()["counts"] == {"ok": 1}


def test_a_host_that_takes_long_to_answer_is_told_of(desk: Laptop, host: Sshd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        desk.hosts(host, port=silent.getsockname()[1])
        desk.write("sweep.yaml", GOOD)
        process = desk.start("run", "sweep.yaml")
        assert process.stderr is not None
        assert process.stderr.readline() == "h1: connecting\n"
        process.terminate()
        process.communicate()


def test_a_good_host_beside_a_bad_one_goes_on(desk: Laptop, host: Sshd) -> None:
    desk.hosts(host)
    hosts = json.loads((desk.folder / "hosts.yaml").read_text())
    hosts["hosts"]["dead"] = {**hosts["hosts"]["h1"], "port": free_port()}
    desk.write("hosts.yaml", json.dumps(hosts))
    desk.write("sweep.yaml", GOOD + "placement: replicate\n")
    done = desk.farbench("run", "sweep.yaml", "--json")
    assert done.code == 1, done.stderr
    document = done.json()
    assert document["counts"] == {"ok": 1, "lost": 1}
    assert document["hosts"]["h1"]["state"] == "ok"
    assert document["hosts"]["dead"]["state"] == "unreachable"


def test_nobody_is_asked_for_a_passphrase_for_a_run_that_cannot_be(desk: Laptop, host: Sshd) -> None:
    make_key(desk.folder / "locked", passphrase="a secret")
    asked = desk.folder / "asked"
    program = desk.write("askpass", f"#!/bin/sh\ntouch {asked}\necho a secret\n")
    program.chmod(0o700)
    (host.folder / "authorized_keys").write_text((desk.folder / "locked.pub").read_text())
    desk.hosts(host, identity_file=str(desk.folder / "locked"))
    desk.write("payloads/bad.py.j2", "def f(:\n")
    desk.write("sweep.yaml", GOOD.replace("sleepy", "bad"))
    more = {"SSH_ASKPASS": str(program), "SSH_AUTH_SOCK": "/nowhere/agent"}
    refused(desk.farbench("run", "sweep.yaml", **more), 2, "bad.py.j2")
    assert not asked.exists()
    desk.write("sweep.yaml", GOOD)
    assert desk.farbench("run", "sweep.yaml", "--json", **more).code == 0
    assert asked.exists()
