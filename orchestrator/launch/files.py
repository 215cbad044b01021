"""The files that a host needs for a command, named by their content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator.errors import FileError

Content = bytes | Path
CHUNK_BYTES = 1024 * 1024


class FileSet:
    """Contents by SHA-256. Made once and sent to many hosts, so that nothing is hashed or held once a host."""

    def __init__(self, tree: Mapping[str, Content] | None = None) -> None:
        """`tree`: path on the host, relative to the run's folder → content, or the local file that has it."""
        self.tree: dict[str, str] = {}
        self._contents: dict[str, Content] = {}
        self._sizes: dict[str, int] = {}
        for path, content in (tree or {}).items():
            self.tree[path] = self.add(content)

    def add(self, content: Content, sha256: str | None = None) -> str:
        """Take in a content that has no place in the tree; returns its SHA-256 (pass it if it is known)."""
        if isinstance(content, bytes):
            sha256 = sha256 or hashlib.sha256(content).hexdigest()
            size = len(content)
        else:
            digest, size = hashlib.sha256(), 0
            for chunk in _chunks(content):
                digest.update(chunk)
                size += len(chunk)
            sha256 = digest.hexdigest()
        self._contents[sha256] = content
        self._sizes[sha256] = size
        return sha256

    def __contains__(self, sha256: str) -> bool:
        return sha256 in self._contents

    def announcement(self) -> list[tuple[str, int]]:
        """(SHA-256, size in bytes) of every content."""
        return list(self._sizes.items())

    def joined(self, other: FileSet) -> FileSet:
        """Both sets' contents, this one's tree."""
        both = FileSet()
        both.tree = self.tree
        both._contents = {**self._contents, **other._contents}
        both._sizes = {**self._sizes, **other._sizes}
        return both

    def read(self, sha256: str) -> Iterator[bytes]:
        """The content in pieces, exactly as long as announced. Raises `FileError` if a local file changed meanwhile."""
        content = self._contents[sha256]
        if isinstance(content, bytes):
            yield content
            return
        left = self._sizes[sha256]
        for chunk in _chunks(content):
            left -= len(chunk)
            if left < 0:
                break
            yield chunk
        if left != 0:
            raise FileError("the file changed while it was sent", path=content)


def _chunks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise FileError(f"cannot be read: {error.strerror or error}", path=path) from error
