"""A real dropbear server for tests: on loopback, with fresh keys, in a home folder of its own."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.support.sshd import START_TIMEOUT_S, Spec, free_port, make_key, with_no_error

# dropbear looks for authorized_keys in the account's home folder and nowhere else: so the account gets another one.
_OTHER_HOME = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pwd.h>
#include <stdlib.h>
static struct passwd *moved(struct passwd *entry) {
    static char *home;
    if (!home) home = getenv("OTHER_HOME");
    if (entry && home) entry->pw_dir = home;
    return entry;
}
struct passwd *getpwnam(const char *name) {
    struct passwd *(*real)(const char *) = dlsym(RTLD_NEXT, "getpwnam");
    return moved(real(name));
}
struct passwd *getpwuid(uid_t uid) {
    struct passwd *(*real)(uid_t) = dlsym(RTLD_NEXT, "getpwuid");
    return moved(real(uid));
}
"""


class Dropbear:
    """One server: `start` it, `stop` it."""

    def __init__(self, folder: Path, *options: str) -> None:
        """`options` are further ones of its command line."""
        self.folder = folder
        self.address = "127.0.0.1"
        self.port = free_port()
        self.user = getpass.getuser()
        self.home = folder / "home"
        self.client_key = folder / "client_key"
        self.known_hosts = folder / "known_hosts"
        self.log = folder / "log"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        (self.home / ".ssh").mkdir(mode=0o700, parents=True)
        make_key(self.client_key)
        shutil.copy(self.client_key.with_suffix(".pub"), self.home / ".ssh" / "authorized_keys")
        (self.home / ".ssh" / "authorized_keys").chmod(0o600)
        made = subprocess.run(
            ["dropbearkey", "-t", "ed25519", "-f", str(folder / "host_key")],
            check=True,
            capture_output=True,
            text=True,
        )
        public = next(line for line in made.stdout.splitlines() if line.startswith("ssh-ed25519 "))
        self.known_hosts.write_text(f"[{self.address}]:{self.port} {' '.join(public.split()[:2])}\n")
        source, self._shim = folder / "home.c", folder / "home.so"
        source.write_text(_OTHER_HOME)
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-o", str(self._shim), str(source), "-ldl"],
            check=True,
            capture_output=True,
        )

    def start(self) -> Dropbear:
        """Start, and wait until it listens."""
        path = f"{os.environ.get('PATH', '')}:/usr/sbin"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                ["dropbear", "-F", "-E", "-m", "-s", "-r", str(self.folder / "host_key"), "-p", f"{self.address}:{self.port}",
                 "-P", str(self.folder / "pid"), *self._options],
                env={**os.environ, "PATH": path, "LD_PRELOAD": str(self._shim), "OTHER_HOME": str(self.home)},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            with socket.socket() as probe:
                if probe.connect_ex((self.address, self.port)) == 0:
                    return self
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"dropbear did not start: {self.log.read_text(errors='replace')}")
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop listening and end every connection."""
        if self._process is not None:
            children = subprocess.run(
                ["ps", "-o", "pid=", "--ppid", str(self._process.pid)], capture_output=True, text=True
            ).stdout.split()
            for pid in (*map(int, children), self._process.pid):
                with_no_error(os.kill, pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def spec(self, name: str = "gpu1", **changes: Any) -> Spec:
        """The host's entry, all in hosts.yaml."""
        values: dict[str, Any] = {
            "address": self.address, "port": self.port, "user": self.user, "identity_file": self.client_key,
            "known_hosts": self.known_hosts, "ssh_config": Path("/dev/null"),
        }  # fmt: skip
        return Spec(name=name, **{**values, **changes})
