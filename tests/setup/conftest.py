"""Tiny wheels made on the spot, and the fixtures of a laptop with real hosts."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import uv

from tests.e2e.conftest import host, laptop
from tests.support.sshd import Sshd

__all__ = ["host", "laptop"]


def make_wheel(
    folder: Path, name: str, version: str, requires: str = "", files: dict[str, str] | None = None
) -> Path:
    """A valid wheel with one module that says its version, and a command `<name>-says`."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    module = f"VERSION = {version!r}\n\ndef main():\n    print({name!r}, VERSION)\n"
    content = {
        f"{name}/__init__.py": module,
        **(files or {}),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + (f"Requires-Dist: {requires}\n" if requires else ""),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name}-says = {name}:main\n",
    }
    rows = []
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for member, text in content.items():
            wheel.writestr(member, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            rows.append(f"{member},sha256={digest},{len(text.encode())}")
        wheel.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,"]) + "\n")
    return path


@pytest.fixture
def wheelhouse(tmp_path: Path) -> Path:
    """kernels 1.0, which needs tensors 2.1."""
    folder = tmp_path / "wheelhouse"
    make_wheel(folder, "kernels", "1.0", "tensors==2.1", {"kernels/later.py": "VERSION = '1.0'\n"})
    make_wheel(folder, "tensors", "2.1")
    return folder


@pytest.fixture
def with_uv() -> Callable[[Sshd], None]:
    """Put the real uv where users have it: in ~/.local/bin, which the PATH of ssh commands leaves out."""

    def give(server: Sshd) -> None:
        folder = server.home / ".local/bin"
        folder.mkdir(parents=True)
        (folder / "uv").symlink_to(uv.find_uv_bin())

    return give
