"""DuckDB's `s3://`: how a connection is taught it, and what lies under such an address.

DuckDB's own extension `httpfs` speaks S3 where it is installed and the environment has keys; else the Python package
`s3fs` does (the extra `s3`), which also knows profiles, roles and single sign-on. Credentials, region and endpoint come
from where AWS's own tools take them, stay in memory, and are written nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import duckdb

from orchestrator.archive import duck
from orchestrator.archive.columns import text
from orchestrator.errors import ArchiveError, FarbenchError

AT_ONCE = 16
"""Objects that are asked for at a time: it is the way there and back that takes long, not the bytes."""

_BLOCK_BYTES = 1 << 20


class Objects:
    """What lies under `url` (`s3://bucket/prefix`), by names below it."""

    def __init__(self, url: str, environ: Mapping[str, str]) -> None:
        self.url = url
        self._environ = environ
        self._files: Any = None

    def prepare(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Teach a connection `s3://`. Raises `ArchiveError` where nothing here can."""
        try:
            connection.execute("LOAD httpfs")
            has_httpfs = True
        except duckdb.Error:
            has_httpfs = False
        if has_httpfs and "AWS_ACCESS_KEY_ID" in self._environ:
            connection.execute(f"CREATE SECRET ({', '.join(_secret(self._environ))})")
            return
        try:
            import s3fs
        except ImportError:
            if not has_httpfs:
                raise ArchiveError(
                    f"{self.url}: reading object storage needs s3fs (pip install 'farbench[s3]') "
                    "or DuckDB's extension httpfs (its statement INSTALL httpfs)"
                ) from None
            for setting, value in _settings(
                self._environ
            ).items():  # a public bucket, or a secret DuckDB keeps
                connection.execute(f"SET s3_{setting} = {value}")
            return
        if self._files is None:
            self._files = s3fs.S3FileSystem(skip_instance_cache=True, default_block_size=_BLOCK_BYTES)
        connection.register_filesystem(self._files)

    def names(self) -> list[str]:
        """Every object, but none that has others below it. Raises `ArchiveError`."""
        with self._connection() as connection:
            if self._files is not None:
                self._files.invalidate_cache()
            found = connection.execute("SELECT file FROM glob(?)", [f"{self.url}/**"]).fetchall()
        start = len(self.url) + 1
        names = {file[start:].rstrip("/") for (file,) in found}
        folders = {
            parent.as_posix() for name in names for parent in PurePosixPath(name).parents
        }  # s3fs has those
        return sorted(names - folders - {""})

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """The contents of objects. Raises `ArchiveError`."""
        if not names:
            return
        with self._connection() as connection:
            pool = ThreadPoolExecutor(min(AT_ONCE, len(names)), thread_name_prefix="objects")
            try:
                yield from zip(
                    names, pool.map(lambda n: self._read(connection.cursor(), n), names), strict=True
                )
            finally:
                pool.shutdown(cancel_futures=True)

    def _read(self, connection: duckdb.DuckDBPyConnection, name: str) -> bytes:
        if self._files is not None:
            try:
                return bytes(self._files.cat_file(f"{self.url}/{name}"))
            except FileNotFoundError:
                raise _gone(self.url, name) from None
        # DuckDB takes every name for a pattern, and httpfs what follows a ? for settings.
        pattern = f"{self.url}/{name}".replace("[", "*").replace("?", "*")
        rows = connection.execute("SELECT filename, content FROM read_blob(?)", [pattern]).fetchall()
        for file, content in rows:
            if file == f"{self.url}/{name}":
                return bytes(content)
        raise _gone(self.url, name)

    @contextmanager
    def _connection(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with duck.connect() as connection:
            self.prepare(connection)
            try:
                yield connection
            except FarbenchError:
                raise
            except Exception as error:
                # DuckDB, its extension, or a file system in Python with the errors of three libraries
                raise ArchiveError(f"{self.url} cannot be read: {gist(error)}") from error


def gist(error: Exception) -> str:
    """What an error of DuckDB says, without the statement and the Python frames that it quotes."""
    said = []
    for line in str(error).splitlines():
        if line.startswith("LINE ") or line == "At:":
            break
        if line.strip() and not line.startswith((" ", "Traceback")):
            said.append(line.strip())
    return "; ".join(said) or type(error).__name__


def _gone(url: str, name: str) -> ArchiveError:
    return ArchiveError(f"{url}/{name} went away while it was to be read; try again")


def _secret(environ: Mapping[str, str]) -> list[str]:
    """The clauses of DuckDB's CREATE SECRET for keys that the environment has."""
    clauses = ["TYPE s3", f"KEY_ID {text(environ['AWS_ACCESS_KEY_ID'])}"]
    clauses.append(f"SECRET {text(environ.get('AWS_SECRET_ACCESS_KEY', ''))}")
    if token := environ.get("AWS_SESSION_TOKEN"):
        clauses.append(f"SESSION_TOKEN {text(token)}")
    return clauses + [f"{name.upper()} {value}" for name, value in _settings(environ).items()]


def _settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Region and endpoint as DuckDB names them, with values as SQL."""
    found = {}
    if region := environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION"):
        found["region"] = text(region)
    if endpoint := environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL"):
        parts = urlsplit(endpoint if "//" in endpoint else f"https://{endpoint}")
        found["endpoint"] = text(f"{parts.netloc}{parts.path.rstrip('/')}")
        found["use_ssl"] = str(parts.scheme == "https").lower()
        found["url_style"] = text("path")
    return found
