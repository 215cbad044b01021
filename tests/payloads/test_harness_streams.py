"""A process whose standard streams were closed by others' code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, sys
from payloads.harness import failures, streams
streams.keep()
os.close(1); os.close(2)
failures.log(ValueError("first"), "one")
sys.stderr.close(); sys.stdout = None
failures.log(ValueError("second"), "two")
streams.restore()
print("still here")
"""


def test_closed_streams_lead_to_the_log_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.DEVNULL, stdout=file, stderr=file, check=False
        )
    text = log.read_text()
    assert done.returncode == 0, text
    assert "ValueError: first" in text
    assert "ValueError: second" in text
    assert "still here" in text
