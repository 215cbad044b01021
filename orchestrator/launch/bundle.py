"""What is sent to a host before anything else: the stub's source, and the agent as one zip."""

from __future__ import annotations

import hashlib
import io
import zipfile
from functools import cache
from pathlib import Path

_AGENT_FOLDER = Path(__file__).resolve().parent.parent / "agent"
_EPOCH = (1980, 1, 1, 0, 0, 0)


@cache
def agent_bundle() -> tuple[str, bytes]:
    """(SHA-256 in hex, zip) of the agent as package `farbench_agent`; equal sources give equal bytes."""
    buffer = io.BytesIO()
    # zlib's output differs between its versions, and the whole is small: stored, so that it is deterministic.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as bundle:
        for path in sorted(_AGENT_FOLDER.glob("*.py")):
            entry = zipfile.ZipInfo(f"farbench_agent/{path.name}", date_time=_EPOCH)
            entry.external_attr = 0o600 << 16
            bundle.writestr(entry, path.read_bytes())
    data = buffer.getvalue()
    return hashlib.sha256(data).hexdigest(), data


@cache
def stub_source() -> bytes:
    """The source of the program that a host runs first; it speaks the dialogue of docs/architecture.md."""
    return (_AGENT_FOLDER / "stub.py").read_bytes()
