"""hosts.yaml: what is read, what is refused, and which hosts a run uses."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.errors import FileError, UsageError
from orchestrator.inventory import (
    CpuSlots,
    HostFilter,
    HostSpec,
    Inventory,
    load_inventory,
    nodes_of,
    resolve_environment,
    select,
)

FULL = """\
defaults: {workdir: ~/.cache/farbench, ssh_config: conf/ssh, user: bench, env: {A: "1", B: "2"}, tags: [any]}
hosts:
  local: {embedded: true}
  blackwell:
    address: gpu1.example.com
    user: root
    port: 2222
    identity_file: ~/.ssh/id
    known_hosts: /etc/known
    proxy_jump: none
    python: ~/ml-env/bin/python
    activate: . /opt/rh/env.sh
    devices: [0, GPU-0a1b2c3d-0000]
    env: {B: "3", HF_TOKEN: {from_env: TOKEN}, THREADS: 8}
    tags: [sm120, gpu]
  cluster:
    address: login.example.com
    tags: gpu
    devices: {cpu: 4}
    user:
    launcher: {slurm: {partition: gpu, nodes: 4, gpus_per_node: 8, time: "01:00:00"}}
"""

Load = Callable[[str], Inventory]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load(text: str) -> Inventory:
        path = tmp_path / "hosts.yaml"
        path.write_text(text, encoding="utf-8")
        return load_inventory(path)

    return load


def test_a_host_has_the_defaults_where_it_says_nothing_itself(load: Load, tmp_path: Path) -> None:
    host = load(FULL).hosts["blackwell"]
    assert (host.name, host.address, host.user, host.port) == ("blackwell", "gpu1.example.com", "root", 2222)
    assert host.workdir == "~/.cache/farbench"
    assert host.python == "~/ml-env/bin/python"
    assert host.ssh_config == tmp_path / "conf/ssh"
    assert host.identity_file == Path.home() / ".ssh/id"
    assert host.known_hosts == Path("/etc/known")
    assert host.proxy_jump == "none"
    assert host.devices == (0, "GPU-0a1b2c3d-0000")
    assert host.tags == ("sm120", "gpu")
    assert host.launcher.kind == "ssh"


def test_env_is_merged_variable_by_variable(load: Load) -> None:
    env = resolve_environment(load(FULL).hosts["blackwell"], {"TOKEN": "s3cret"})
    assert env.plain == {"A": "1", "B": "3", "THREADS": "8"}
    assert env.secrets == {"HF_TOKEN": "s3cret"}


def test_a_variable_that_is_not_set_is_named_with_its_host(load: Load) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_environment(load(FULL).hosts["blackwell"], {})
    assert "host 'blackwell'" in str(caught.value)
    assert "TOKEN" in str(caught.value)


def test_null_takes_a_default_back_and_one_tag_needs_no_list(load: Load) -> None:
    host = load(FULL).hosts["cluster"]
    assert host.user is None
    assert host.tags == ("gpu",)
    assert host.devices == CpuSlots(cpu=4)
    assert host.launcher.kind == "slurm"
    assert host.launcher.slurm is not None
    assert host.launcher.slurm.time == "01:00:00"


def test_an_entry_for_several_nodes_stands_for_as_many_hosts_of_a_run(load: Load) -> None:
    inventory = load(FULL)
    hosts = nodes_of(tuple(inventory.hosts.values()))
    assert [host.name for host in hosts] == [
        "local", "blackwell", "cluster-1", "cluster-2", "cluster-3", "cluster-4",
    ]  # fmt: skip
    assert {host.launcher.slurm.nodes for host in hosts[2:] if host.launcher.slurm} == {1}
    assert hosts[2].launcher.slurm is not None
    assert hosts[2].launcher.slurm.options() == ("--partition=gpu", "--gpus-per-node=8", "--time=01:00:00")


def test_further_options_of_sbatch_go_as_they_are(load: Load) -> None:
    (host,) = load(
        "hosts: {c: {address: x, launcher: {slurm: {time: 30, mem: 0, args: ['--reservation=a b', --exclusive]}}}}"
    ).hosts.values()
    assert host.launcher.slurm is not None
    assert host.launcher.slurm.options() == ("--mem=0", "--time=30", "--reservation=a b", "--exclusive")


def test_the_embedded_host_runs_under_the_controllers_python(load: Load) -> None:
    host = load(FULL).hosts["local"]
    assert host.python == sys.executable
    assert host.address is None


def test_a_host_survives_json(load: Load) -> None:
    for host in load(FULL).hosts.values():
        assert HostSpec.model_validate(json.loads(host.model_dump_json())) == host
        assert HostSpec.model_validate_json(host.model_dump_json()) == host


def test_anchors_and_dos_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_bytes(
        b"\xef\xbb\xbfdefaults: &d {user: me}\r\nhosts:\r\n  a: {<<: *d, address: x}\r\n  b: {<<: *d, address: y}\r\n"
    )
    assert [h.address for h in load_inventory(path).hosts.values()] == ["x", "y"]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("hosts: {}", 1, "no hosts"),
        ("host: {a: {address: x}}", 1, "unknown key 'host' (did you mean 'hosts'?)"),
        ("hosts: [a]", 1, "hosts is a mapping, not a list"),
        ("hosts:\n  a: 3", 2, "host 'a' is a mapping"),
        ("hosts:\n  a: {user: x}", 2, "host 'a': needs `address`"),
        ("hosts:\n  a: {embedded: true, address: x}", 2, "an embedded host has no address"),
        ("hosts:\n  a:\n    address: x\n    prot: 22", 4, "unknown key 'prot' (did you mean 'port'?)"),
        ("hosts:\n  a:\n    address: x\n    port: 0", 4, "port: should be greater than or equal to 1, not 0"),
        ("hosts:\n  a:\n    address: x\n    port: '22'", 4, "port: should be a valid integer, not '22'"),
        ("hosts:\n  a:\n    address: x\n    devices: [gpu0]", 4, "'gpu0' is neither an index"),
        ("hosts:\n  a:\n    address: x\n    devices: [-1]", 4, "-1 is neither an index"),
        ("hosts:\n  a:\n    address: x\n    devices: [1, 1]", 4, "names a device twice"),
        ("hosts:\n  a:\n    address: x\n    devices: []", 4, "devices: is `all`"),
        ("hosts:\n  a:\n    address: x\n    devices: {cpus: 2}", 4, "unknown key 'cpus' in devices"),
        ("hosts:\n  a:\n    address: x\n    env: {A: 3.10}", 4, "A is text (quote it)"),
        ("hosts:\n  a:\n    address: x\n    env: {A: true}", 4, "A is text (quote it)"),
        (
            "hosts:\n  a:\n    address: x\n    env: {'A B': x}",
            4,
            "'A B' is no name of an environment variable",
        ),
        ("hosts:\n  a:\n    address: x\n    env: {A: {from: X}}", 4, "unknown key 'from' in env.A"),
        ("hosts:\n  a:\n    address: x\n    launcher: pbs", 4, "launcher: is `ssh` or {slurm: {…}}"),
        ("hosts:\n  a:\n    address: x\n    launcher: {slurm: {node: 2}}", 4, "did you mean 'nodes'?"),
        (
            "hosts:\n  a: {address: x, launcher: {slurm: {nodes: 2}}}\n  a-2: {address: y}",
            3,
            "host 'a-2': a node of 'a' has that name in a run",
        ),
        ("hosts:\n  'a b': {address: x}", 2, "'a b' is no name for a host"),
        ("hosts:\n  ../x: {address: x}", 2, "'../x' is no name for a host"),
        ("hosts:\n  all: {address: x}", 2, "'all' is no name for a host"),
        ("hosts:\n  a: {address: x}\n  a: {address: y}", 3, "duplicate key 'a'"),
        ("defaults: {name: x}\nhosts: {a: {address: x}}", 1, "a host's name is its key"),
    ],
)
def test_what_is_wrong_is_refused_at_its_line(
    load: Load, tmp_path: Path, text: str, line: int, message: str
) -> None:
    with pytest.raises(FileError) as caught:
        load(text)
    assert str(caught.value).startswith(f"{tmp_path / 'hosts.yaml'}:{line}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ("{cpu: 0}", "devices.cpu: should be greater than or equal to 1, not 0"),
        ("{cpu: x}", "devices.cpu: should be a valid integer, not 'x'"),
        ("{}", "devices.cpu is missing"),
    ],
)
def test_of_several_kinds_the_one_that_was_meant_is_told(load: Load, devices: str, said: str) -> None:
    with pytest.raises(FileError) as caught:
        load(f"hosts:\n  a: {{address: x, devices: {devices}}}\n")
    assert str(caught.value).endswith(f"hosts.yaml:2: host 'a': {said}")
    assert "\n" not in str(caught.value)


def test_a_mistake_in_the_defaults_is_told_once_whatever_the_hosts(load: Load) -> None:
    with pytest.raises(FileError) as caught:
        load("defaults: {usr: x}\nhosts:\n  a: {address: x}\n  b: {address: y, prot: 1}\n")
    first, second = str(caught.value).splitlines()
    assert first.endswith(":1: defaults: unknown key 'usr' (did you mean 'user'?)")
    assert second.endswith(":4: host 'b': unknown key 'prot' (did you mean 'port'?)")


def names(hosts: tuple[HostSpec, ...]) -> list[str]:
    return [host.name for host in hosts]


def test_every_host_unless_some_are_asked_for(load: Load) -> None:
    inventory = load(FULL)
    assert names(select(inventory)) == ["local", "blackwell", "cluster"]
    assert names(select(inventory, wanted=HostFilter())) == ["local", "blackwell", "cluster"]
    assert names(select(inventory, wanted=HostFilter(tags=("gpu",)))) == ["blackwell", "cluster"]
    assert names(select(inventory, wanted=HostFilter(names=("cluster",), tags=("sm120",)))) == [
        "blackwell",
        "cluster",
    ]


def test_the_command_line_replaces_what_the_sweep_asks_for(load: Load) -> None:
    inventory = load(FULL)
    assert names(select(inventory, names=["local"], wanted=HostFilter(tags=("gpu",)))) == ["local"]
    assert names(select(inventory, tags=["sm120"], wanted=HostFilter(names=("local",)))) == ["blackwell"]
    assert names(select(inventory, names=["local", "local"], tags=["sm120"])) == ["local", "blackwell"]


def test_an_unknown_host_is_refused_with_those_there_are(load: Load) -> None:
    with pytest.raises(UsageError) as caught:
        select(load(FULL), names=["blackwel"])
    assert "no host 'blackwel'" in str(caught.value)
    assert "(did you mean 'blackwell'?); there are: local, blackwell, cluster" in str(caught.value)


def test_a_tag_that_leaves_no_host_is_refused(load: Load) -> None:
    with pytest.raises(
        UsageError, match=r"has tag 'sm12' \(did you mean 'sm120'\?\); tags there: any, gpu, sm120"
    ):
        select(load(FULL), tags=["sm12"])


def test_a_sweep_that_asks_for_an_unknown_host_is_named_with_its_line(load: Load) -> None:
    wanted = HostFilter(names=("gone",), path=Path("s.yaml"), line=9)
    with pytest.raises(FileError, match=r"^s\.yaml:9: no host 'gone'"):
        select(load(FULL), wanted=wanted)


def test_the_shipped_hosts_file_has_the_local_host_only_and_its_comments_are_right(tmp_path: Path) -> None:
    shipped = Path(__file__).resolve().parents[2] / "hosts.yaml"
    assert list(load_inventory(shipped).hosts) == ["local"]
    # what a user gets who takes the comment signs away
    lines = [
        line.replace("  # ", "  ", 1) if line.startswith("  # ") else line
        for line in shipped.read_text().splitlines()
    ]
    prose = ("A GPU server", "A cluster")
    path = tmp_path / "hosts.yaml"
    path.write_text("\n".join(line for line in lines if not line.strip().startswith(prose)) + "\n")
    assert list(load_inventory(path).hosts) == ["local", "blackwell", "cluster"]
