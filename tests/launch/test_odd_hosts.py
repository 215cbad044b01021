"""A whole run on hosts as they are: odd shells, odd folders, odd Pythons, odd locales, and little room."""

from __future__ import annotations

import errno
import getpass
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.errors import HostUnusable
from orchestrator.launch.dialogue import Dialogue, End, Launched
from orchestrator.transport.open import Connections
from tests.support.dropbear import Dropbear
from tests.support.places import Place, namespaces_work
from tests.support.runs import TREE, item, job, journal, measurements, run_one
from tests.support.sshd import Sshd, with_no_error
from tests.support.waiting import wait_for

Make = Callable[..., Sshd]


@pytest.fixture
def login_shell(tmp_path: Path) -> Callable[[str], str]:
    """A login shell that does something first: lines of /bin/sh."""

    def make(lines: str) -> str:
        path = tmp_path / "login_shell"
        path.write_text(f'#!/bin/sh\n{lines}\nexec /bin/bash "$@"\n')
        path.chmod(0o755)
        return str(path)

    return make


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Callable[..., Place]]:
    """Mount namespaces that go at the end."""
    places: list[Place] = []

    def make(*mounts: str) -> Place:
        places.append(Place(tmp_path, mounts))
        return places[-1]

    yield make
    for one in places:
        one.close()


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]


# Shells, subsystems and what they print


def test_no_sftp_subsystem_is_needed(make_sshd: Make, connections: Connections) -> None:
    sshd = make_sshd(Subsystem=None)
    spec = sshd.spec()
    assert run_one(connections.transport(spec), spec)["status"] == "ok"
    assert "subsystem request" not in sshd.read_log()


def test_a_whole_run_on_dropbear(dropbear: Dropbear, connections: Connections) -> None:
    spec = dropbear.spec(workdir="~/bench runs")
    record = run_one(connections.transport(spec), spec, argument="it's")
    assert (record["status"], record["extra"]["seen"]) == ("ok", "it's")
    assert (dropbear.home / "bench runs" / "runs" / "r1").is_dir()


def test_banner_motd_and_rc_files_on_every_channel(
    make_sshd: Make, connections: Connections, tmp_path: Path
) -> None:
    (tmp_path / "banner").write_text("*** authorised use only ***\n" * 50)
    sshd = make_sshd(Banner=str(tmp_path / "banner"), PrintMotd="yes")
    noise = "echo '{\"hello\":1}'\nprintf '\\033[1mgpu1\\033[0m \\377\\376 no newline'\necho oops >&2\n"
    (sshd.home / ".bashrc").write_text(noise)
    spec = sshd.spec()
    record = run_one(connections.transport(spec), spec, argument="mine")
    assert (record["status"], record["extra"]["seen"]) == ("ok", "mine")


@pytest.mark.parametrize("shell", ["fish", "tcsh"])
def test_fish_and_tcsh_as_login_shells(shell: str, make_sshd: Make, connections: Connections) -> None:
    spec = make_sshd(shell=f"/usr/bin/env {shell}").spec()
    assert run_one(connections.transport(spec), spec, argument="it's $HOME")["extra"]["seen"] == "it's $HOME"


def test_an_account_whose_shell_is_nologin_says_so(make_sshd: Make, connections: Connections) -> None:
    spec = make_sshd(shell="/usr/sbin/nologin").spec()
    with pytest.raises(HostUnusable, match="This account is currently not available"):
        Dialogue(connections.transport(spec), spec).status("r1")


def test_an_account_that_is_forced_to_another_command_says_what_it_said(
    make_sshd: Make, connections: Connections
) -> None:
    spec = make_sshd(ForceCommand="echo only backups here").spec()
    with pytest.raises(HostUnusable, match="only backups here"):
        Dialogue(connections.transport(spec), spec).status("r1")


# Pythons and programs


def test_the_only_python_has_another_name(
    make_sshd: Make, connections: Connections, login_shell: Callable[[str], str], tmp_path: Path
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "python3").write_text("#!/bin/sh\necho 'Python 3.6.8'\nexit 2\n")
    (tools / "python3").chmod(0o755)
    (tools / "python3.9").symlink_to(sys.executable)
    spec = make_sshd(shell=login_shell(f"PATH='{tools}'")).spec()
    assert run_one(connections.transport(spec), spec)["status"] == "ok"


def test_busybox_as_the_only_userland_and_no_setsid(
    make_sshd: Make, connections: Connections, login_shell: Callable[[str], str], tmp_path: Path
) -> None:
    tools = tmp_path / "applets"
    tools.mkdir()
    busybox = shutil.which("busybox")
    assert busybox is not None
    for applet in subprocess.run(
        [busybox, "--list"], capture_output=True, text=True, check=True
    ).stdout.split():
        if applet not in ("setsid", "nohup"):
            (tools / applet).symlink_to(busybox)
    spec = make_sshd(shell=login_shell(f"export PATH='{tools}'")).spec(agent_python=sys.executable)
    assert connections.transport(spec).run(["setsid", "true"]).exit_status == 127
    assert run_one(connections.transport(spec), spec)["status"] == "ok"


def test_no_programs_at_all_but_a_configured_python(
    make_sshd: Make, connections: Connections, login_shell: Callable[[str], str]
) -> None:
    spec = make_sshd(shell=login_shell("export PATH=/nowhere")).spec(agent_python=sys.executable)
    assert run_one(connections.transport(spec), spec)["status"] == "ok"


# Folders


@pytest.mark.parametrize("workdir", ["~/bench runs/é", "~/it's $HOME; `id`", '~/漢字 \\ "q"'])
def test_tilde_blanks_quotes_and_non_ascii_in_the_work_folder(
    workdir: str, sshd: Sshd, connections: Connections
) -> None:
    spec = sshd.spec(workdir=workdir)
    dialogue = Dialogue(connections.transport(spec), spec)
    assert run_one(connections.transport(spec), spec)["status"] == "ok"
    folder = sshd.home / workdir.removeprefix("~/") / "runs" / "r1"
    assert folder.is_dir()
    assert dialogue.list_files("r1") != []


def test_a_read_only_home_is_named_and_another_work_folder_helps(
    make_sshd: Make,
    connections: Connections,
    place: Callable[..., Place],
    login_shell: Callable[[str], str],
    tmp_path: Path,
) -> None:
    home = tmp_path / "sshd1" / "home"
    home.mkdir(parents=True)
    if namespaces_work():
        shell = place(f"mount --bind '{home}' '{home}'", f"mount -o remount,bind,ro '{home}'").shell
    else:  # root may write into any folder, but into none of these
        shell = login_shell(f"test -w '{home}' && export HOME=/proc/self")
    sshd = make_sshd(shell=shell)
    home.chmod(0o500)
    spec = sshd.spec()
    with pytest.raises(HostUnusable, match=r"(sshd1/home|/proc/\w+)/\.cache: \w+") as caught:
        run_one(connections.transport(spec), spec)
    assert caught.value.step == "create the work folder"
    elsewhere = sshd.spec(workdir=str(tmp_path / "scratch"))
    assert run_one(connections.transport(elsewhere), elsewhere)["status"] == "ok"
    home.chmod(0o700)


def test_nothing_is_executed_from_a_noexec_work_folder_and_tmp(
    make_sshd: Make, connections: Connections, place: Callable[..., Place], tmp_path: Path
) -> None:
    work, temporary = tmp_path / "work", tmp_path / "tmp"
    work.mkdir()
    temporary.mkdir()
    shell = "/bin/bash"
    if namespaces_work():
        inside = place(*(f"mount -t tmpfs -o noexec tmpfs '{folder}'" for folder in (work, temporary)))
        inside.run(f"cp /bin/true '{work}/program' && ! '{work}/program' 2>/dev/null && rm '{work}/program'")
        shell = inside.shell
    spec = make_sshd(shell=shell).spec(workdir=str(work))
    record = run_one(connections.transport(spec), spec, env={"TMPDIR": str(temporary)})
    assert record["status"] == "ok"
    if namespaces_work():
        assert inside.run(f"find '{work}' -type f -perm /111") == ""
    else:
        assert [path for path in files_below(work) if path.stat().st_mode & 0o111] == []


def test_a_tmp_without_any_room(
    make_sshd: Make, connections: Connections, place: Callable[..., Place], tmp_path: Path
) -> None:
    temporary, shell = tmp_path / "tmp", "/bin/bash"
    if namespaces_work():
        temporary.mkdir()
        inside = place(
            f"mount -t tmpfs -o size=4k tmpfs '{temporary}'", f"head -c 4096 /dev/zero > '{temporary}/full'"
        )
        shell = inside.shell
    sshd = make_sshd(shell=shell)
    (sshd.home / ".bashrc").write_text(f"export TMPDIR='{temporary}'\n")
    spec = sshd.spec()
    assert run_one(connections.transport(spec), spec)["status"] == "ok"


BIG = b"# " + b"x" * 300_000 + b"\n"


def test_a_full_disk_is_named_and_no_half_file_is_used_later(
    make_sshd: Make,
    connections: Connections,
    place: Callable[..., Place],
    login_shell: Callable[[str], str],
    tmp_path: Path,
) -> None:
    """Without mounts: a limit on the size of files, which fails in the same way in the middle of a file."""
    work = tmp_path / "work"
    work.mkdir()
    if namespaces_work():
        inside = place(
            f"mount -t tmpfs -o size=16m tmpfs '{work}'", f"head -c 16550000 /dev/zero > '{work}/ballast'"
        )
        shell = inside.shell
    else:
        shell = login_shell(f"test -e '{tmp_path}/room' || ulimit -f 200")
    spec = make_sshd(shell=shell).spec(workdir=str(work))
    script = b"import json, sys\nprint(json.dumps({'time_us': 5, 'seen': sys.argv[1]}))\n" + BIG
    with pytest.raises(HostUnusable) as caught:
        run_one(connections.transport(spec), spec, script=script)
    message = str(caught.value)
    assert f"{work}/cache/" in message
    assert "No space left on device" in message or "File too large" in message
    if namespaces_work():
        assert ".incoming" not in inside.run(f"ls -a '{work}/cache'")
        inside.run(f"rm '{work}/ballast'")
    else:
        assert not list((work / "cache").glob(".incoming*"))
        (tmp_path / "room").touch()
    assert run_one(connections.transport(spec), spec, script=script)["status"] == "ok"


OVER_QUOTA = """
import errno, os, stat
real = os.{call}
def limited(fd, *data):
    found = os.fstat(fd)
    over = stat.S_ISREG(found.st_mode) and found.st_size + sum(map(len, data)) > 100_000
    if over and not os.path.exists({room!r}):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
    return real(fd, *data)
os.{call} = limited
"""


@pytest.mark.parametrize("call", ["write", "fsync", "close"])
def test_a_used_up_quota_is_named_and_no_half_file_is_used_later(
    call: str, sshd: Sshd, connections: Connections, tmp_path: Path
) -> None:
    """Told when a local disk is written to, and perhaps only at the end by a server of files."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "limited")], check=True)
    (packages,) = (tmp_path / "limited" / "lib").glob("python3*/site-packages")
    room = tmp_path / "room"
    (packages / "sitecustomize.py").write_text(OVER_QUOTA.format(call=call, room=str(room)))
    spec = sshd.spec(agent_python=str(tmp_path / "limited" / "bin" / "python"), workdir="~/w")
    with pytest.raises(HostUnusable) as caught:
        run_one(connections.transport(spec), spec)
    message = str(caught.value)
    cache = sshd.home / "w" / "cache"
    assert f"store the uploaded files: {cache}/" in message
    assert os.strerror(errno.EDQUOT) in message
    assert "your quota is used up: free some space there, or set another `workdir`" in message
    assert [path.name for path in cache.iterdir() if path.stat().st_size > 100_000] == []
    room.touch()
    assert run_one(connections.transport(spec), spec)["status"] == "ok"


def test_a_file_that_was_cut_in_the_cache_is_sent_again(sshd: Sshd, connections: Connections) -> None:
    spec = sshd.spec(workdir="~/w")
    assert run_one(connections.transport(spec), spec)["status"] == "ok"
    for path in (sshd.home / "w" / "cache").iterdir():
        path.write_bytes(path.read_bytes()[:10])
    assert run_one(connections.transport(spec), spec, run_id="r2")["status"] == "ok"


@pytest.mark.parametrize("umask", ["077", "000"])
def test_whatever_the_umask_files_are_for_the_user_only(
    umask: str, make_sshd: Make, connections: Connections, login_shell: Callable[[str], str]
) -> None:
    sshd = make_sshd(shell=login_shell(f"umask {umask}"))
    spec = sshd.spec(workdir="~/w")
    assert run_one(connections.transport(spec), spec)["status"] == "ok"
    modes = {path.stat().st_mode & 0o777 for path in files_below(sshd.home / "w")}
    folders = {path.stat().st_mode & 0o777 for path in (sshd.home / "w").rglob("*") if path.is_dir()}
    assert modes <= {0o600, 0o700}
    assert folders == {0o700}


# Users, locales, clocks


@pytest.fixture
def other_user() -> Iterator[str]:
    """A user who is not root: one made for this test, or, where we are not root, ourselves."""
    if os.geteuid() != 0:
        yield getpass.getuser()
        return
    name = f"fbtest{os.getpid()}"
    # A password that nothing matches: without one the account counts as locked.
    command = ["useradd", "--no-create-home", "--shell", "/bin/sh", "--password", "*", name]
    subprocess.run(command, check=True, capture_output=True)
    yield name

    def gone() -> bool:
        """The agent may still be starting something: asked again until nothing of the user runs."""
        theirs = subprocess.run(
            ["ps", "-o", "pid=", "-u", name], capture_output=True, text=True
        ).stdout.split()
        for pid in map(int, theirs):
            with_no_error(os.kill, pid, 9)
        return not theirs and subprocess.run(["userdel", name], capture_output=True).returncode == 0

    wait_for(gone, what="the account to go")


def test_a_user_who_is_not_root(connections: Connections, other_user: str) -> None:
    folder = Path(tempfile.mkdtemp(prefix="fb-user-"))
    sshd = Sshd(folder / "sshd", StrictModes="no")
    try:
        sshd.user = other_user
        folder.chmod(0o755)
        (folder / "sshd").chmod(0o755)
        if os.geteuid() == 0:
            for path in (sshd.home, folder / "sshd" / "outer_home"):
                shutil.chown(path, other_user)
        sshd.start()
        spec = sshd.spec()
        hello, _ = Dialogue(connections.transport(spec), spec).probe()
        assert hello.uid != 0
        assert run_one(connections.transport(spec), spec)["status"] == "ok"
        assert (sshd.home / ".cache" / "farbench").stat().st_uid == hello.uid
    finally:
        sshd.stop()
        shutil.rmtree(folder)


MEGABYTE = (
    "import json, os, sys\n"
    "line = json.dumps({'time_us': 5, 'text': 'é€' * 200_000}, ensure_ascii=False) + '\\n'\n"
    "os.write(1, line.encode('utf-8')[:999]); sys.stdout.flush()\n"
    "sys.stdout.buffer.write(line.encode('utf-8')[999:]); sys.stdout.flush()\n"
    "os.write(1, b'\\xff\\xfe\\n')\n"
).encode()


def test_a_megabyte_of_non_ascii_output_under_the_posix_locale(
    make_sshd: Make, connections: Connections, login_shell: Callable[[str], str]
) -> None:
    shell = login_shell("export LC_ALL=C; unset LANG LC_CTYPE PYTHONUTF8 PYTHONIOENCODING")
    spec = make_sshd(shell=shell).spec(workdir="~/ärger")
    record = run_one(connections.transport(spec), spec, script=MEGABYTE)
    assert record["status"] == "ok"
    assert record["extra"]["text"] == "é€" * 200_000


def test_a_script_may_print_non_ascii_under_the_posix_locale(
    make_sshd: Make, connections: Connections, login_shell: Callable[[str], str]
) -> None:
    spec = make_sshd(shell=login_shell("export LC_ALL=C; unset LANG")).spec()
    script = "import json, sys\nprint('é€')\nprint(json.dumps({'time_us': 5, 'seen': sys.argv[1]}, ensure_ascii=False))\n"
    record = run_one(connections.transport(spec), spec, script=script.encode(), argument="漢字")
    assert (record["status"], record["extra"]["seen"]) == ("ok", "漢字")


def test_a_clock_that_is_two_hours_ahead_changes_no_duration(
    sshd: Sshd, connections: Connections, tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "ahead")], check=True)
    (packages,) = (tmp_path / "ahead" / "lib").glob("python3*/site-packages")
    (packages / "sitecustomize.py").write_text(
        "import time\nreal = time.time\ntime.time = lambda: real() + 7200\n"
    )
    spec = sshd.spec(agent_python=str(tmp_path / "ahead" / "bin" / "python"))
    before = time.time()
    following = Dialogue(connections.transport(spec), spec).launch(
        job=job("r1"), tree=TREE, queue=[item("c1")]
    )
    messages = list(following)
    assert 7200 <= following.hello.time - before < 7200 + 60
    (record,) = measurements(messages)
    assert record["status"] == "ok"
    assert 0 <= record["duration_s"] < 60


# What the environment and the streams carry


def test_quotes_substitutions_and_newlines_stay_what_they_are(sshd: Sshd, connections: Connections) -> None:
    text = 'it\'s "$HOME" $(touch ~/pwned) `touch ~/pwned` \n {x!r} \\n é'
    script = b"import json, os, sys\nprint(json.dumps({'time_us': 5, 'seen': sys.argv[1], 'env': os.environ['TEXT']}))\n"
    spec = sshd.spec()
    record = run_one(connections.transport(spec), spec, script=script, argument=text, env={"TEXT": text})
    assert (record["extra"]["seen"], record["extra"]["env"]) == (text, text)
    assert not list(sshd.home.rglob("pwned"))


def test_a_hundred_kilobytes_in_a_variable_arrive_and_more_than_linux_takes_is_named(
    sshd: Sshd, connections: Connections
) -> None:
    script = b"import json, os\nprint(json.dumps({'time_us': 5, 'size': len(os.environ['BIG'])}))\n"
    spec = sshd.spec()
    transport = connections.transport(spec)
    fits = run_one(transport, spec, script=script, env={"BIG": "x" * 100_000})
    assert fits["metrics"]["size"] == 100_000
    record = run_one(transport, spec, script=script, run_id="r2", env={"BIG": "x" * 200_000})
    assert record["status"] == "error"
    assert "variable BIG has 200000 bytes" in record["reason"]


def test_much_on_standard_error_before_much_on_standard_output(sshd: Sshd, connections: Connections) -> None:
    script = (
        b"import json, sys\nsys.stderr.write('e' * 6_000_000)\nsys.stdout.write(('o' * 99 + '\\n') * 60_000)\n"
        b"print(json.dumps({'time_us': 5}))\n"
    )
    spec = sshd.spec()
    assert run_one(connections.transport(spec), spec, script=script)["status"] == "ok"


# Processes that do not live as long as they should


def test_an_agent_that_was_killed_at_logout_is_told_and_taken_up_again(
    sshd: Sshd, connections: Connections
) -> None:
    """As logind does with KillUserProcesses=yes: everything of the user's session is gone, nobody says so."""
    spec = sshd.spec()
    dialogue = Dialogue(connections.transport(spec), spec)
    script = {
        "scripts/bench/bench.py": b"import time, sys\nif sys.argv[1] == 'slow': time.sleep(600)\nprint('{\"time_us\": 5}')\n"
    }
    pid = 0
    seen: set[str] = set()
    the_job = job("r1")
    following = dialogue.launch(job=the_job, tree=script, queue=[item("c1"), item("c2", "slow")])
    messages = []
    for message in following:
        messages.append(message)
        if isinstance(message, Launched):
            pid = message.pid
        events = journal(messages)
        if any(event["type"] == "case_started" and event["case_id"] == "c2" for event in events):
            break
    following.close()
    workers = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True
    ).stdout.split()
    for process in (pid, *map(int, workers)):
        os.kill(process, 9)
    end = list(dialogue.follow("r1", 0))[-1]
    assert isinstance(end, End)
    assert end.state == "dead"
    quick = {"scripts/bench/bench.py": script["scripts/bench/bench.py"].replace(b"600", b"0")}
    again = list(dialogue.launch(job=the_job, tree=quick, queue=[item("c1"), item("c2", "slow")]))
    seen = {record["case_id"] for record in measurements(again)}
    assert seen == {"c1", "c2"}


def test_a_login_without_any_environment(
    make_sshd: Make, connections: Connections, login_shell: Callable[[str], str]
) -> None:
    """Without PATH, Python does not know what it was started as; payloads run with the agent's interpreter all the same."""
    shell = login_shell('exec env -i HOME="$HOME" /bin/bash "$@"')
    spec = make_sshd(shell=shell).spec()
    assert run_one(connections.transport(spec), spec)["status"] == "ok"
