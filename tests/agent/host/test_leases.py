from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.agent import leases as leases_module
from orchestrator.agent import lockfiles, procs
from orchestrator.agent.leases import LeaseError, Leases
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[3]
A, B, C = "GPU-aaaa", "GPU-bbbb", "GPU-cccc"


class Claimant:
    def __init__(self, workdir: Path, gpu_dir: Path, name: str) -> None:
        module = [sys.executable, "-m", "tests.agent.host.claimant", str(workdir), str(gpu_dir), name]
        self.process = subprocess.Popen(
            module, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, command: str, *uuids: str) -> object:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([command, *uuids]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


NewClaimant = Callable[[str], Claimant]


@pytest.fixture
def claimant(tmp_path: Path) -> Iterator[NewClaimant]:
    made: list[Claimant] = []

    def make(name: str) -> Claimant:
        made.append(Claimant(tmp_path / "work", tmp_path / "gpus", name))
        return made[-1]

    yield make
    for one in made:
        one.kill()


def test_a_device_is_leased_to_one_at_a_time(claimant: NewClaimant) -> None:
    first, second = claimant("first"), claimant("second")
    assert first("claim", A) is True
    assert second("claim", A) is False
    assert second("claim", B) is True
    first("release")
    assert second("claim", A) is True


def test_a_gang_gets_all_or_nothing(claimant: NewClaimant) -> None:
    first, gang = claimant("first"), claimant("gang")
    assert first("claim", B) is True
    assert gang("claim", A, B, C) is False
    assert first("claim", A) is True, "the failed gang must not hold what it could get"
    assert first("claim", C) is True
    first("release")
    assert gang("claim", C, B, A) is True


def test_a_lease_ends_with_its_holder(claimant: NewClaimant) -> None:
    first, second = claimant("first"), claimant("second")
    assert first("claim", A, "cpu-0") is True
    assert second("claim", A) is False
    first.kill()
    assert second("claim", A, "cpu-0") is True


def test_the_holder_can_be_read_by_who_waits(claimant: NewClaimant, tmp_path: Path) -> None:
    first, second = claimant("20250101-run"), claimant("second")
    assert second("holder", A) is None
    first("claim", A)
    holder = second("holder", A)
    assert isinstance(holder, dict)
    assert {**procs.identity(first.process.pid), "run_id": "20250101-run"}.items() <= holder.items()
    assert holder["user"]
    assert holder["since"].endswith("Z")
    assert holder["reserved"] is False
    assert procs.is_alive(holder)
    first("release")
    assert second("holder", A) is None


def test_a_gang_is_not_overtaken(claimant: NewClaimant) -> None:
    small, gang, other = claimant("small"), claimant("gang"), claimant("other")
    assert small("claim", A) is True
    assert gang("claim", A, B) is False
    gang("reserve", A, B)
    assert other("claim", B) is False, "B is free, but the gang came first"
    assert other("claim", C) is True
    holder = other("holder", B)
    assert isinstance(holder, dict)
    assert (holder["run_id"], holder["reserved"]) == ("gang", True)
    small("release")
    assert small("claim", A) is False, "A is free, but the gang came first"
    assert gang("claim", A, B) is True
    gang("release")
    assert other("claim", B) is True, "a gang that got its devices gave its ticket back"


def test_the_own_process_does_not_overtake_its_gang(tmp_path: Path) -> None:
    leases = Leases(str(tmp_path / "work"), str(tmp_path / "gpus"), "run")
    single = leases.try_claim([A])
    assert single is not None
    leases.reserve([B, A])
    assert leases.try_claim([B]) is None
    assert leases.try_claim([A, B, C]) is None
    assert leases.try_claim([C]) is not None
    single.release()
    assert leases.try_claim([A]) is None
    gang = leases.try_claim([A, B])
    assert gang is not None
    gang.release()
    assert leases.try_claim([B]) is not None


def test_two_gangs_go_one_after_the_other(claimant: NewClaimant) -> None:
    holder, first, second = claimant("holder"), claimant("first"), claimant("second")
    holder("claim", B)
    first("reserve", A, B)
    second("reserve", B, C)
    holder("release")
    assert second("claim", B, C) is False, "the older ticket goes first"
    assert first("claim", A, B) is True
    assert second("claim", B, C) is False
    first("release")
    assert second("claim", B, C) is True


def test_reserving_again_keeps_the_place_and_others_lose_it(claimant: NewClaimant) -> None:
    first, second = claimant("first"), claimant("second")
    first("reserve", A, B)
    second("reserve", A, B)
    first("reserve", B, A)
    assert second("claim", A, B) is False
    first("reserve", A, B, C)
    assert first("claim", A, B, C) is False
    assert second("claim", A, B) is True


@pytest.mark.parametrize("how", ["unreserve", "kill"])
def test_a_ticket_goes_with_its_owner(claimant: NewClaimant, tmp_path: Path, how: str) -> None:
    gang, other = claimant("gang"), claimant("other")
    gang("reserve", A, B)
    assert other("claim", A) is False
    if how == "kill":
        gang.kill()
    else:
        gang("unreserve")
    assert other("claim", A) is True
    assert [name for name in os.listdir(tmp_path / "gpus") if "ticket" in name] == []


def test_a_ticket_nobody_asks_for_no_longer_counts(claimant: NewClaimant, tmp_path: Path) -> None:
    gang, other = claimant("gang"), claimant("other")
    gang("reserve", A, B)
    (ticket,) = [path for path in (tmp_path / "gpus").iterdir() if "ticket" in path.name]
    asked = ticket.stat().st_mtime
    os.utime(ticket, (asked, asked - leases_module.TICKET_STALE_S - 1))
    assert other("claim", A) is True
    other("release")
    gang("reserve", A, B)
    assert other("claim", A) is False


def test_cpu_slots_are_leased_within_the_workdir(tmp_path: Path) -> None:
    one = Leases(str(tmp_path / "one"), str(tmp_path / "gpus"), "run")
    two = Leases(str(tmp_path / "two"), str(tmp_path / "gpus"), "run")
    first = one.try_claim(["cpu-0"], ["cpu"])
    assert first is not None
    assert one.try_claim(["cpu-0"]) is None
    assert two.try_claim(["cpu-0"]) is not None
    assert stat.S_IMODE((tmp_path / "one" / "leases").stat().st_mode) == 0o700
    assert not (tmp_path / "gpus").exists()


def test_the_shared_folder_is_open_to_every_user_whatever_the_umask(tmp_path: Path) -> None:
    previous = os.umask(0o077)
    try:
        lease = Leases(str(tmp_path / "work"), str(tmp_path / "gpus"), "run").try_claim([A])
    finally:
        os.umask(previous)
    assert lease is not None
    assert stat.S_IMODE((tmp_path / "gpus").stat().st_mode) == 0o1777
    assert stat.S_IMODE((tmp_path / "gpus" / f"{A}.lock").stat().st_mode) == 0o666


def test_a_child_process_does_not_inherit_the_lease(tmp_path: Path) -> None:
    leases = Leases(str(tmp_path / "work"), str(tmp_path / "gpus"), "run")
    lease = leases.try_claim([A])
    assert lease is not None
    child = subprocess.Popen(["/bin/sleep", "600"], close_fds=False)
    try:
        wait_for(lambda: os.readlink(f"/proc/{child.pid}/exe").endswith(("sleep", "coreutils", "busybox")))
        lease.release()
        again = leases.try_claim([A])
        assert again is not None
        links = [os.readlink(f"/proc/{child.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{child.pid}/fd")]
        assert not any(".lock" in link for link in links)
    finally:
        child.kill()
        child.wait()


@contextlib.contextmanager
def another_user() -> Iterator[None]:
    """Act as a user without rights; as who we are where we have no right to change."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that every user of this machine can reach."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with lockfiles.folder(f"{folder}/gpus", 0o1777):
            pass
        yield Path(folder)


def test_users_share_the_locks(shared_folder: Path) -> None:
    mine = Leases(str(shared_folder / "mine"), str(shared_folder / "gpus"), "mine")
    theirs = Leases(str(shared_folder / "theirs"), str(shared_folder / "gpus"), "theirs")
    lease = mine.try_claim([A])
    mine.reserve([B, C])
    assert lease is not None
    with another_user():
        assert theirs.try_claim([A]) is None
        assert theirs.try_claim([B]) is None
        holder = theirs.holder_of(A)
    assert holder is not None
    assert holder["run_id"] == "mine"
    lease.release()
    mine.unreserve()
    with another_user():
        taken = theirs.try_claim([A, B])
        assert taken is not None
    assert mine.try_claim([A]) is None
    holder = mine.holder_of(A)
    assert holder is not None
    assert holder["run_id"] == "theirs"


def test_a_file_that_may_only_be_read_still_locks(shared_folder: Path) -> None:
    (shared_folder / "gpus" / f"{A}.lock").touch()
    (shared_folder / "gpus" / f"{A}.lock").chmod(0o444)
    theirs = Leases(str(shared_folder / "theirs"), str(shared_folder / "gpus"), "theirs")
    with another_user():
        lease = theirs.try_claim([A])
        assert lease is not None
        assert theirs.try_claim([A]) is None
        holder = theirs.holder_of(A)
    assert holder is not None
    assert holder["run_id"] is None, "nothing could be written, and the lock holds all the same"
    lease.release()


def test_a_dead_ticket_that_may_not_be_removed_stops_nobody(shared_folder: Path) -> None:
    dead = shared_folder / "gpus" / f"ticket-{1:020d}-1-{'0' * 8}"
    dead.write_text(json.dumps({"locks": [f"{A}.lock"]}))
    theirs = Leases(str(shared_folder / "theirs"), str(shared_folder / "gpus"), "theirs")
    with another_user():
        assert theirs.try_claim([A]) is not None


@pytest.mark.parametrize("trap", ["symlink", "dangling symlink", "hard link", "fifo", "folder"])
def test_what_another_user_put_in_the_way_is_refused_and_not_touched(tmp_path: Path, trap: str) -> None:
    gpus, victim = tmp_path / "gpus", tmp_path / "victim"
    gpus.mkdir(mode=0o1777)
    victim.write_text("precious")
    path = gpus / f"{A}.lock"
    if trap == "symlink":
        path.symlink_to(victim)
    elif trap == "dangling symlink":
        path.symlink_to(tmp_path / "made-through-the-link")
    elif trap == "hard link":
        os.link(victim, path)
    elif trap == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(LeaseError, match=f"{A}.lock"):
        Leases(str(tmp_path / "work"), str(gpus), "run").try_claim([A])
    assert victim.read_text() == "precious"
    assert not (tmp_path / "made-through-the-link").exists()


def test_a_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "gpus").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LeaseError, match="cannot be used: is a link or no folder"):
        Leases(str(tmp_path / "work"), str(tmp_path / "gpus"), "run").try_claim([A])
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_lock_file_removed_by_a_cleaner_does_not_let_two_in_by_the_old_one(tmp_path: Path) -> None:
    gpus = tmp_path / "gpus"
    leases = Leases(str(tmp_path / "work"), str(gpus), "run")
    with lockfiles.folder(str(gpus), 0o1777) as directory:
        old = lockfiles.open_file(directory, f"{A}.lock", 0o666)
        (gpus / f"{A}.lock").unlink()
        lease = leases.try_claim([A])
        assert lease is not None
        assert lockfiles.lock(old)
        assert not lockfiles.is_at(old, directory, f"{A}.lock")
        os.close(old)


@pytest.mark.parametrize(
    "written",
    [
        b"",
        b"{",
        b"[1]",
        b"\xff\xfe",
        b'{"pid": "x", "run_id": 5}',
        b"[" * 60000,
        b'{"run_id": "a\\u001b[31m\\u0000b", "pid": NaN}',
    ],
)
def test_what_is_written_in_a_lock_file_is_not_trusted(tmp_path: Path, written: bytes) -> None:
    leases = Leases(str(tmp_path / "work"), str(tmp_path / "gpus"), "run")
    lease = leases.try_claim([A])
    assert lease is not None
    (tmp_path / "gpus" / f"{A}.lock").write_bytes(written)
    holder = leases.holder_of(A)
    assert holder is not None
    assert holder["pid"] is None
    assert holder["run_id"] in (None, "a[31mb")
    json.dumps(holder, allow_nan=False)


@pytest.mark.parametrize("content", [b"", b"nonsense", b'{"locks": 5}', b'{"locks": [["GPU-aaaa.lock"]]}'])
def test_a_ticket_that_cannot_be_read_stops_nobody(tmp_path: Path, content: bytes) -> None:
    leases = Leases(str(tmp_path / "work"), str(tmp_path / "gpus"), "run")
    with lockfiles.folder(str(tmp_path / "gpus"), 0o1777) as directory:
        ticket = lockfiles.create_file(directory, f"ticket-{1:020d}-1-{'0' * 8}", 0o666)
    assert lockfiles.lock(ticket)
    os.write(ticket, content)
    assert leases.try_claim([A]) is not None
    os.close(ticket)


@pytest.mark.parametrize(
    ("one", "other"),
    [("MIG-GPU-a/1/0", "MIG-GPU-a_1_0"), ("../../etc/passwd", "______etc_passwd"), ("." * 3, "." * 4)],
)
def test_odd_uuids_become_different_file_names_inside_the_folder(
    tmp_path: Path, one: str, other: str
) -> None:
    leases = Leases(str(tmp_path / "work"), str(tmp_path / "gpus"), "run")
    assert leases.try_claim([one]) is not None
    assert leases.try_claim([other]) is not None
    assert leases.try_claim([one]) is None
    assert len(list((tmp_path / "gpus").glob("*.lock")) + list((tmp_path / "gpus").glob(".*.lock"))) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["gpus"]


def test_a_device_is_claimed_once_in_a_claim(tmp_path: Path) -> None:
    leases = Leases(str(tmp_path / "work"), str(tmp_path / "gpus"), "run")
    for wrong in ([], [A, A]):
        with pytest.raises(ValueError, match="each device once"):
            leases.try_claim(wrong)
    with pytest.raises(ValueError, match="not of both"):
        leases.reserve([A, "cpu-0"])


def test_a_crowd_shares_without_overlap_overtaking_or_deadlock(tmp_path: Path) -> None:
    """Several processes, claims and gangs at random: the protocol's promises hold in what they wrote down."""
    (tmp_path / "marks").mkdir()
    seed = secrets.randbelow(10**6)
    uuids = ["GPU-1", "GPU-2", "GPU-3", "GPU-4"]
    crowd = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.agent.host.crowd", str(seed + n), "40", str(tmp_path / "work"),
             str(tmp_path / "gpus"), str(tmp_path / "marks"), str(tmp_path / f"log-{n}"), *uuids],
            cwd=ROOT,
        )
        for n in range(5)
    ]  # fmt: skip
    try:
        codes = [process.wait(90) for process in crowd]
    finally:
        for process in crowd:
            process.kill()
            process.wait()
    assert codes == [0] * 5, f"two held one device, or someone never got his; seed {seed}"
    claims = [json.loads(line) for n in range(5) for line in (tmp_path / f"log-{n}").read_text().splitlines()]
    assert len(claims) == 5 * 40
    gangs = [claim for claim in claims if claim["ticket"] is not None]
    assert gangs, f"no gang ever had to wait; seed {seed}"
    for gang in gangs:
        for claim in claims:
            # A claim is as old as its ticket, and one without a ticket as old as its last asking.
            began = claim["asked"] if claim["ticket"] is None else claim["reserving"]
            overtook = gang["ticket"] < began and claim["got"] < gang["got"]
            assert not (overtook and set(claim["uuids"]) & set(gang["uuids"])), (
                f"{claim} overtook {gang}; seed {seed}"
            )
    assert [path.name for path in (tmp_path / "gpus").iterdir() if "ticket" in path.name] == []
