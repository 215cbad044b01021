"""Keys of FIDO tokens that want to be touched: over the system's ssh, and over ours through the ssh agent."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.doctor.examine import examine
from orchestrator.errors import HostRefused
from orchestrator.inventory import load_inventory
from orchestrator.launch.dialogue import Dialogue
from orchestrator.transport import openssh_master, ssh_agent
from orchestrator.transport.open import Connections
from tests.support.runs import TREE, item, job, measurements
from tests.support.security_key import SecurityKey
from tests.support.sshd import Spec, Sshd, make_key
from tests.support.waiting import BOUND_S, wait_for

Make = Callable[..., Sshd]
HELLO = ["echo", "hi"]
KINDS = {"ed25519-sk": "sk-ssh-ed25519@openssh.com", "ecdsa-sk": "sk-ecdsa-sha2-nistp256@openssh.com"}


@pytest.fixture
def token() -> Iterator[SecurityKey]:
    """A token, which is touched at once."""
    with SecurityKey() as plugged_in:
        yield plugged_in


class Agent:
    """A real ssh-agent, which takes keys of tokens."""

    def __init__(self, folder: str, environ: dict[str, str]) -> None:
        path = f"{folder}/agent"
        allowed = ["-P", "/tmp/*"]
        self.process = subprocess.Popen(
            ["ssh-agent", "-D", "-a", path, *allowed], stdout=subprocess.DEVNULL, env=environ
        )
        wait_for(lambda: Path(path).exists())
        self.environ = {**environ, "SSH_AUTH_SOCK": path}

    def add(self, key: Path, *options: str) -> None:
        subprocess.run(["ssh-add", "-q", *options, str(key)], env=self.environ, check=True)


@pytest.fixture
def agent(user_environ: dict[str, str]) -> Iterator[Agent]:
    with tempfile.TemporaryDirectory(prefix="fb-", dir="/tmp") as folder:  # paths of sockets are short
        made = Agent(folder, user_environ)
        yield made
        made.process.terminate()
        made.process.wait()


@pytest.fixture
def host(make_sshd: Make, token: SecurityKey, tmp_path: Path) -> Sshd:
    """A host that lets in only the token's key `id_sk`."""
    token.make_key(tmp_path / "id_sk")
    return make_sshd(AuthorizedKeysFile=str(tmp_path / "id_sk.pub"))


def over_ssh(host: Sshd, token: SecurityKey, key: Path) -> Spec:
    """By way of the system's ssh, which has to know the token's library."""
    config = key.with_name("config")
    config.write_text(host.ssh_config_block("gpu1", f"SecurityKeyProvider {token.library}"))
    return Spec("gpu1", address="gpu1", ssh_config=config, identity_file=key, transport="openssh")


def run_once(connections: Connections, spec: Spec) -> None:
    dialogue = Dialogue(connections.transport(spec), spec)
    messages = list(dialogue.launch(job=job("r1"), tree=TREE, queue=[item("c1")]))
    assert [record["status"] for record in measurements(messages)] == ["ok"]


class Person:
    """Touches the token when, and only when, farbench says that it wants to be touched."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self._told = threading.Event()

    def hear(self, message: str) -> None:
        self.heard.append(message)
        self._told.set()

    def touch(self) -> bool:
        return self._told.wait(BOUND_S)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_over_the_systems_ssh_takes_one_touch(
    kind: str, make_sshd: Make, token: SecurityKey, user_environ: dict[str, str], tmp_path: Path
) -> None:
    key = tmp_path / "id_sk"
    token.make_key(key, kind)
    assert key.with_suffix(".pub").read_text().startswith(KINDS[kind])
    host = make_sshd(AuthorizedKeysFile=str(key.with_suffix(".pub")))
    person = Person()
    token.touch = person.touch
    with Connections(environ=user_environ, warn=person.hear) as connections:
        run_once(connections, over_ssh(host, token, key))
    assert person.heard == [f"gpu1: {key}: touch the hardware key"]
    assert token.asked == 1
    assert host.read_log().count("Accepted publickey") == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_through_the_agent_takes_one_touch(
    kind: str, make_sshd: Make, token: SecurityKey, agent: Agent, tmp_path: Path
) -> None:
    """The agent holds another key of the token, which the host does not know: nobody is asked to touch for that."""
    for name in ("other", "id_sk"):
        token.make_key(tmp_path / name, kind)
        agent.add(tmp_path / name, "-S", str(token.library))
        (tmp_path / name).unlink()
    host = make_sshd(AuthorizedKeysFile=str(tmp_path / "id_sk.pub"))
    config = tmp_path / "config"
    config.write_text(host.ssh_config_block("gpu1").replace("IdentityFile", "# IdentityFile"))
    person = Person()
    token.touch = person.touch
    with Connections(environ=agent.environ, warn=person.hear) as connections:
        run_once(connections, Spec("gpu1", address="gpu1", ssh_config=config))
    assert person.heard == ["gpu1: agent key test: touch the hardware key"]
    assert token.asked == 1


@pytest.mark.parametrize("answers", [True, False], ids=["the token gives up", "the token waits on"])
def test_a_touch_that_does_not_come_over_the_systems_ssh(
    answers: bool, host: Sshd, token: SecurityKey, connections: Connections, tmp_path: Path,
    warnings_heard: list[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    key = tmp_path / "id_sk"
    never = threading.Event()
    token.touch = (lambda: False) if answers else never.wait
    monkeypatch.setattr(openssh_master, "LOGIN_TIMEOUT_S", 60.0 if answers else 0.5)
    with pytest.raises(HostRefused) as caught:
        connections.transport(over_ssh(host, token, key)).connect()
    never.set()
    assert caught.value.step == "authentication"
    reason = f'signing failed for ED25519-SK "{key}"' if answers else f"{key}: no signature within 0.5 s"
    assert "the hardware key did not sign: " in str(caught.value)
    assert reason in str(caught.value)
    assert "touch it when it blinks" in (caught.value.hint or "")
    assert token.asked == 1


@pytest.mark.parametrize("answers", [True, False], ids=["the token gives up", "the token waits on"])
def test_a_touch_that_does_not_come_through_the_agent(
    answers: bool, host: Sshd, make_sshd: Make, token: SecurityKey, agent: Agent, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """An answer that comes too late is not taken for that to the next question."""
    agent.add(tmp_path / "id_sk", "-S", str(token.library))
    make_key(tmp_path / "plain")
    agent.add(tmp_path / "plain")
    (tmp_path / "plain").unlink()
    at_last = threading.Event()
    token.touch = (lambda: False) if answers else at_last.wait
    with Connections(environ=agent.environ) as connections:
        transport = connections.transport(host.spec(identity_file=tmp_path / "id_sk.pub"))
        with monkeypatch.context() as patched:
            patched.setattr(ssh_agent, "AGENT_TIMEOUT_S", 60 if answers else 0.7)
            with pytest.raises(HostRefused) as caught:
                transport.connect()
        at_last.set()
        other = make_sshd(AuthorizedKeysFile=str(tmp_path / "plain.pub"))
        spec = other.spec(name="gpu2", identity_file=tmp_path / "plain.pub")
        assert connections.transport(spec).run(HELLO).stdout == b"hi\n"
    assert caught.value.step == "authentication"
    reason = "the agent refused to sign" if answers else "the agent did not answer within 0.7 s"
    assert (
        f"agent key test: the host would take it, but {reason}: the hardware key was not touched in time, wants a PIN,"
        " or is not plugged in"
    ) in str(caught.value)
    assert token.asked == 1


@pytest.mark.parametrize("client", ["ssh", "openssh"])
def test_doctor_names_the_step_that_waits_for_a_touch(
    client: str, host: Sshd, token: SecurityKey, agent: Agent, tmp_path: Path
) -> None:
    key = tmp_path / "id_sk"
    agent.add(key, "-S", str(token.library))
    spec = over_ssh(host, token, key)
    never = threading.Event()
    token.touch = never.wait
    entry = {
        "address": "gpu1",
        "ssh_config": str(spec.ssh_config),
        "identity_file": str(key),
        "transport": client,
    }
    (tmp_path / "hosts.yaml").write_text(json.dumps({"hosts": {"gpu1": entry}}))
    hosts = list(load_inventory(tmp_path / "hosts.yaml").hosts.values())
    with Connections(environ=agent.environ) as connections:
        (found,) = examine(hosts, connections.transport, environ=agent.environ, limit_s=1.5)
        never.set()
    checks = {check.name: check for check in found.checks}
    assert checks["host key"].state.value == "ok"
    assert (checks["authentication"].state.value, checks["authentication"].found) == (
        "failed",
        "no answer within 2 s",
    )


@pytest.mark.parametrize("kind", KINDS)
def test_without_an_agent_our_ssh_names_the_ways_out(
    kind: str, sshd: Sshd, token: SecurityKey, connections: Connections, tmp_path: Path
) -> None:
    key = tmp_path / "id_sk"
    token.make_key(key, kind)
    with pytest.raises(HostRefused) as caught:
        connections.transport(sshd.spec(identity_file=key)).connect()
    assert caught.value.step == "authentication"
    assert (
        f"{key}: a key of a hardware token ({KINDS[kind]}), with which only ssh and its agent sign:"
        f" set `transport: openssh`, or add it to the agent (ssh-add {key})"
    ) in str(caught.value)
    assert token.asked == 0


def test_a_pin_is_asked_for_with_askpass_only(
    make_sshd: Make, user_environ: dict[str, str], tmp_path: Path
) -> None:
    with SecurityKey(pin="1234") as token:
        key = tmp_path / "id_sk"
        token.make_key(key, "ed25519-sk", "verify-required")
        host = make_sshd(AuthorizedKeysFile=str(tmp_path / "id_sk.pub"))
        spec = over_ssh(host, token, key)
        with Connections(environ=user_environ) as connections, pytest.raises(HostRefused) as caught:
            connections.transport(spec).connect()
        assert "a PIN is asked for with the program in SSH_ASKPASS only" in (caught.value.hint or "")
        program = tmp_path / "askpass"
        program.write_text("#!/bin/sh\ncase $1 in *PIN*) echo 1234;; esac\n")
        program.chmod(0o700)
        with Connections(environ={**user_environ, "SSH_ASKPASS": str(program)}) as connections:
            assert connections.transport(spec).run(HELLO).stdout == b"hi\n"


def test_a_key_that_the_agent_does_not_sign_with_leaves_the_next_one_of_use(
    make_sshd: Make, agent: Agent, tmp_path: Path
) -> None:
    """The first wants a confirmation (`ssh-add -c`), for which this agent can ask nobody."""
    for name, options in (("first", ["-c"]), ("second", [])):
        make_key(tmp_path / name)
        agent.add(tmp_path / name, *options)
    keys = tmp_path / "keys"
    keys.write_text("".join((tmp_path / f"{name}.pub").read_text() for name in ("first", "second")))
    host = make_sshd(AuthorizedKeysFile=str(keys))
    config = tmp_path / "config"
    config.write_text(host.ssh_config_block("gpu1").replace("IdentityFile", "# IdentityFile"))
    spec = Spec("gpu1", address="gpu1", ssh_config=config)
    with Connections(environ={**os.environ, **agent.environ}) as connections:
        assert connections.transport(spec).run(HELLO).stdout == b"hi\n"
    keys.write_text((tmp_path / "first.pub").read_text())
    with (
        Connections(environ={**os.environ, **agent.environ}) as connections,
        pytest.raises(
            HostRefused, match="the host would take it, but the agent refused to sign: is it locked"
        ),
    ):
        connections.transport(spec).connect()
