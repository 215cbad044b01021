"""What DuckDB does when it meets something that one of its extensions would be downloaded for: nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import duckdb
import pytest

from orchestrator.archive import duck

NEEDS_AN_EXTENSION = "COPY (FROM read_parquet('gcs://bucket/results.parquet')) TO 'copy.parquet'"


@pytest.fixture
def asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path) -> Iterator[list[str]]:
    """The addresses that DuckDB asks the proxy of its environment for; it has no extension yet."""
    addresses: list[str] = []

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            addresses.append(self.path)
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Proxy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        yield addresses
        server.shutdown()
        thread.join()


def test_the_proxy_sees_what_duckdb_would_download(asked_for: list[str]):
    """Else the tests below would prove nothing."""
    with duckdb.connect() as connection, pytest.raises(duckdb.Error):
        connection.execute(NEEDS_AN_EXTENSION)
    assert any("httpfs" in address for address in asked_for)


def test_a_connection_and_its_cursors_download_nothing(asked_for: list[str]):
    with duck.connect() as connection:
        for ours in (connection, connection.cursor()):
            with pytest.raises(duckdb.Error, match="httpfs"):
                ours.execute(NEEDS_AN_EXTENSION)
    assert asked_for == []


def test_a_process_apart_downloads_nothing(asked_for: list[str]):
    problem = duck.execute_apart(NEEDS_AN_EXTENSION)
    assert problem is not None
    assert asked_for == []


def test_a_process_apart_tells_what_went_wrong_or_nothing(asked_for: list[str], tmp_path):
    assert "nowhere" in (duck.execute_apart("FROM nowhere") or "")
    assert duck.execute_apart("COPY (SELECT 1 AS n) TO 'one.parquet'") is None
    assert (tmp_path / "one.parquet").is_file()
