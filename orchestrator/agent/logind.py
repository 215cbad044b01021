"""Whether this host's systemd-logind ends detached programs when their user logs out."""

from __future__ import annotations

import glob
import os
from typing import Dict, Optional

# Later ones win; within a folder by name, whichever of the folders a name is in.
_FOLDERS = ("usr/lib/systemd/logind.conf.d", "run/systemd/logind.conf.d", "etc/systemd/logind.conf.d")


def kills_at_logout(user: str, root: str = "/") -> Optional[str]:
    """What will happen to the agent at logout and what to do about it, or None when it is left alone."""
    if not os.path.isdir(os.path.join(root, "run/systemd/system")):
        return None  # another init system, or a container without one
    settings = _settings(root)
    if settings.get("KillUserProcesses", "no").lower() not in ("yes", "true", "1", "on", "y", "t"):
        return None
    only = settings.get("KillOnlyUsers", "").split()
    spared = settings.get("KillExcludeUsers", "root").split()
    if user in spared or (only and user not in only):
        return None
    if os.path.exists(os.path.join(root, "var/lib/systemd/linger", user)):
        return None
    return (
        "systemd-logind ends this user's processes at logout (KillUserProcesses=yes), the agent among them: "
        f"run `loginctl enable-linger {user}` on the host"
    )


def _settings(root: str) -> Dict[str, str]:
    drop_ins: Dict[str, str] = {}
    for folder in _FOLDERS:
        for path in glob.glob(os.path.join(glob.escape(root), folder, "*.conf")):
            drop_ins[os.path.basename(path)] = path
    main = [os.path.join(root, folder, "systemd/logind.conf") for folder in ("usr/lib", "etc")]
    settings: Dict[str, str] = {}
    for path in [*main, *(drop_ins[name] for name in sorted(drop_ins))]:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                lines = [line.strip() for line in file]
        except OSError:
            continue
        for line in lines:
            key, equals, value = line.partition("=")
            if equals and not line.startswith(("#", ";")):
                settings[key.strip()] = value.strip()
    return settings
