"""What farbench adds to 200 cases that do nothing, on one host, as a ratio of things measured in the same minute.

    python benchmarks/many_cases.py [--runs 5] [--cases 200]

Side by side, in turn: (a) `farbench run` of the sweep over SSH to a real sshd, whole process; (b) the same rendered
script looping over the same cases in one local process; (c) a bare paramiko process that connects and runs `true`.
The bound that this project keeps: a ≤ 3·b + 2.5·c (medians).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.sshd import start_sshd  # noqa: E402

BARE = """
import sys, paramiko
client = paramiko.SSHClient()
client.load_host_keys(sys.argv[1])
client.connect("127.0.0.1", port=int(sys.argv[2]), username=sys.argv[3], key_filename=sys.argv[4],
               look_for_keys=False, allow_agent=False)
_, out, _ = client.exec_command("true")
sys.exit(out.channel.recv_exit_status())
"""
