"""An archive in object storage: an S3 server on loopback, the same commands, the same answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

import orchestrator.api
from orchestrator.archive import Archive
from orchestrator.archive.notes import annotate
from orchestrator.archive.objects import Objects
from orchestrator.archive.query import query
from orchestrator.cli.app import run as command
from orchestrator.errors import ArchiveError
from orchestrator.model import Measurement

SECRET = "a-secret-that-nothing-may-keep"
ADDRESS = "s3://bench-results/of team/é"
PREFIX = "of team/é"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def bucket(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of an empty bucket; the environment leads to it, and to no settings of whoever runs the tests."""
    home = tmp_path / "home"
    home.mkdir()
    for name in [name for name in os.environ if name.startswith(("AWS_", "FARBENCH_"))]:
        monkeypatch.delenv(name)
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1", "HOME": str(home), "TMPDIR": str(tmp_path / "tmp"), "COLUMNS": "200",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.chdir(tmp_path)
    client = boto3.client("s3")
    client.create_bucket(Bucket="bench-results")
    yield client
    for found in client.list_objects_v2(Bucket="bench-results").get("Contents", ()):
        client.delete_object(Bucket="bench-results", Key=found["Key"])


@pytest.fixture
def kept(archive: Archive, document, measurement, line) -> Archive:
    """Two committed runs and one that is open, with a note, a tag, logs, and a folder that is no run."""
    for run_id, factor in (("r1", 1.0), ("r2", 1.5)):
        with archive.create(run_id, document(sweep={"name": "fp4"}), {"gemm.py": b"print(1)\n"}) as run:
            run.append_events("gpu 1", 0, line(run_id))
            run.save_file("gpu 1", "logs/worker [1].log", [b"printed\n"])
            rows: list[Measurement] = [
                measurement(
                    run_id,
                    backend=backend,
                    timing={"timer": "graph", "cache": "cold", "median_us": 12.5 * factor},
                    samples_us=[12.0 * factor, 13.0 * factor] * 20,
                )
                for backend in ("torch", "cutlass")
            ]
            run.commit(rows, "finished", ended_at="2025-01-02T04:00:00Z")
    with archive.create("r3", document(sweep={"name": "open"}), {}) as run:
        run.append_events("gpu 1", 0, line("r3", label="m=16 [bs=8]"))
    annotate(archive, "r1", note="first", add=["baseline"])
    (archive.path / "runs" / "stray").mkdir()
    (archive.path / "runs" / "stray" / "file.txt").write_text("?")
    return archive


@pytest.fixture
def upload(bucket: Any) -> Callable[[Archive], None]:
    """As `aws s3 sync` does it."""

    def copy(archive: Archive) -> None:
        for path in archive.path.rglob("*"):
            if path.is_file():
                key = f"{PREFIX}/{path.relative_to(archive.path).as_posix()}"
                bucket.put_object(Bucket="bench-results", Key=key, Body=path.read_bytes())

    return copy


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """A command's exit code and output."""

    def run(*arguments: str, archive: str = ADDRESS) -> tuple[int, str, str]:
        capsys.readouterr()
        code = command([*arguments, "--archive", archive])
        return code, *capsys.readouterr()

    return run


SAME = [
    ["runs"],
    ["runs", "--tag", "baseline", "--json"],
    ["report", "r1"],
    ["report", "latest", "--format", "json"],
    ["compare", "baseline", "r2"],
    ["history", "m=16*", "--json"],
    ["plot", "r1"],
    ["logs", "r1"],
    ["query", "select run_id, backend, timing.median_us, params->>'m' as m from results order by all"],
    ["query", "select run_id, state, tags, note, counts from runs order by all"],
    ["query", "select nonsense"],
    ["repro", "r1", "m=16", "--backend", "torch"],
]


def test_what_reads_says_the_same_as_of_a_folder(kept: Archive, upload, ask, tmp_path: Path) -> None:
    upload(kept)
    for arguments in SAME:
        here, there = ask(*arguments, archive=str(kept.path)), ask(*arguments)
        assert there[0] == here[0], (arguments, there)
        assert there[1] == here[1], arguments
        assert there[2].replace("s3:/bench", "s3://bench").replace(ADDRESS, str(kept.path)) == here[2], (
            arguments
        )
    assert ask("export", "r1", "-o", "there.tar.zst")[0] == 0
    assert ask("export", "r1", "-o", "here.tar.zst", archive=str(kept.path))[0] == 0
    assert Path("there.tar.zst").read_bytes() == Path("here.tar.zst").read_bytes()
    assert list((tmp_path / "tmp").iterdir()) == []  # copies go with their command
    results = orchestrator.api.Archive(ADDRESS).results()
    assert results.pandas()["backend"].tolist() == ["cutlass", "torch", "cutlass", "torch", "torch"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "sweep.yaml"],
        ["attach", "r3"],
        ["cancel", "r3"],
        ["resume", "r3"],
        ["pull", "r3"],
        ["runs", "r1", "--add-tag", "x"],
        ["runs", "--prune", "--keep", "0", "--yes"],
        ["import", "here.tar.zst"],
        ["import", "bench.csv", "--format", "triton-csv"],
    ],
)
def test_what_writes_is_refused_with_the_way_to_do_it(
    kept: Archive, upload, ask, bucket: Any, arguments: list[str], tmp_path: Path
) -> None:
    upload(kept)
    ask("export", "r1", "-o", "here.tar.zst", archive=str(kept.path))
    Path("bench.csv").write_text("M,torch (Time (us))\n16,1.5\n")
    Path("hosts.yaml").write_text('{"hosts": {"local": {"embedded": true, "devices": {"cpu": 1}}}}')
    Path("bench.py").write_text("")
    Path("sweep.yaml").write_text('{"name": "s", "payload": {"script": "bench.py"}, "matrix": {"m": [1]}}')
    before = bucket.list_objects_v2(Bucket="bench-results")["Contents"]
    code, printed, said = ask(*arguments)
    assert (code, printed) == (
        2,
        "r3\n" if arguments == ["attach", "r3"] else "",
    )  # which run is meant is said first
    assert said == (
        f"error: {ADDRESS} can only be read: name a folder with --archive, and bring what it holds there with "
        f"`aws s3 sync FOLDER {ADDRESS}`, or any tool that copies files\n"
    )
    assert bucket.list_objects_v2(Bucket="bench-results")["Contents"] == before
    assert not list(tmp_path.glob("s3*"))


def test_damaged_and_hostile_objects_are_named_and_left_out(
    kept: Archive, upload, ask, bucket: Any, tmp_path: Path
) -> None:
    upload(kept)
    bucket.put_object(Bucket="bench-results", Key=f"{PREFIX}/runs/r1/results.parquet", Body=b"PAR1 no PAR1")
    bucket.delete_object(Bucket="bench-results", Key=f"{PREFIX}/runs/r2/results.parquet")
    bucket.put_object(Bucket="bench-results", Key=f"{PREFIX}/runs/r4/run.json", Body=b'{"torn')
    for name in ("runs/../../../escaped", "runs/r1/scripts/../../../../../escaped", "runs/r5/" + "x" * 300):
        bucket.put_object(Bucket="bench-results", Key=f"{PREFIX}/{name}", Body=b"x")
    table = query(Archive(ADDRESS), "select run_id, count(*) from results group by all order by all")
    assert table.rows == [("r1", 2), ("r2", 2), ("r3", 1)]
    told = "\n".join(table.warnings)
    assert f"{ADDRESS}/runs/r1/results.parquet is damaged" in told
    assert f"{ADDRESS}/runs/r2/results.parquet is missing; results.jsonl was read in its place" in told
    assert f"{ADDRESS}/runs/r4/run.json: is damaged" in told
    assert f"{ADDRESS}/runs/stray is no run" in told
    assert not [path for path in tmp_path.rglob("escaped*") if path.is_file()]


def test_damage_within_a_parquet_file_is_read_around(kept: Archive, upload, bucket: Any) -> None:
    file = kept.find("r1").results_parquet
    whole = bytearray(file.read_bytes())
    length = int.from_bytes(whole[-8:-4], "little")
    whole[4 : -8 - length] = b"\x5a" * (len(whole) - 12 - length)
    file.write_bytes(whole)
    upload(kept)
    table = query(Archive(ADDRESS), "select run_id, sum(timing.median_us) from results group by 1 order by 1")
    assert table.rows == [("r1", 25.0), ("r2", 37.5), ("r3", 12.5)]
    assert "results.jsonl was read in its place" in "\n".join(table.warnings)


def test_a_query_reads_the_runs_and_nothing_else_of_the_store(
    kept: Archive, upload, ask, bucket: Any
) -> None:
    upload(kept)
    for sql in (
        f"select * from read_blob('{ADDRESS}/runs/r1/run.json')",
        f"copy (select 1) to '{ADDRESS}/runs/r1/results.parquet' (format parquet)",
    ):
        assert ask("query", sql)[0] == 2, sql
    _, printed, said = ask("query", "select * from duckdb_secrets()")
    assert SECRET not in printed + said
    assert query(Archive(ADDRESS), "select count(*) from results").rows == [(5,)]


def test_what_is_wrong_is_said_in_one_line(bucket: Any, ask, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask("report") == (2, "", f"error: there is no run in the archive yet ({ADDRESS})\n")
    for address, words in {
        "s3://no-such-bucket/x": "s3://no-such-bucket/x cannot be read: ",
        "gs://bucket/x": "gs://bucket/x: an archive is a folder, or s3://BUCKET/PREFIX",
        "s3://bench-results/a*": "without any of *?[",
    }.items():
        code, printed, said = ask("runs", archive=address)
        assert (code, printed) == (2, ""), address
        assert said.startswith(f"error: {words}") or words in said
        assert said.count("\n") == 1
        assert "Traceback" not in said
        assert SECRET not in said
    monkeypatch.setitem(sys.modules, "s3fs", None)  # as where it is not installed
    code, _, said = ask("runs")
    assert code == 2
    assert said.startswith(
        f"error: {ADDRESS}: reading object storage needs s3fs (pip install 'farbench[s3]') or "
    )


def test_a_process_of_its_own_leaves_nothing_behind(kept: Archive, upload, tmp_path: Path) -> None:
    upload(kept)
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", "runs", "--json"],
        env={**os.environ, "FARBENCH_ARCHIVE": ADDRESS + "/", "PYTHONPATH": str(Path(__file__).parents[2])},
        stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", timeout=60,
    )  # fmt: skip
    assert done.stderr == f"warning: {ADDRESS}/runs/stray is no run\n"
    assert [run["run_id"] for run in json.loads(done.stdout)["runs"]] == ["r3", "r2", "r1"]
    assert list((tmp_path / "tmp").iterdir()) == []
    written = [
        path for path in tmp_path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()
    ]
    assert written == []


def test_httpfs_gets_keys_and_endpoint_from_the_environment() -> None:
    """DuckDB cannot load its extension without a download, so this looks at what it would be told."""
    said: list[str] = []

    class Connection:
        def execute(self, sql: str) -> None:
            said.append(sql)

    environ = {
        "AWS_ACCESS_KEY_ID": "it's", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t", "AWS_REGION": "eu-west-1",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9000/",
    }  # fmt: skip
    Objects("s3://b/p", environ).prepare(Connection())  # type: ignore[arg-type]
    assert said == [
        "LOAD httpfs",
        "CREATE SECRET (TYPE s3, KEY_ID 'it''s', SECRET 's', SESSION_TOKEN 't', REGION 'eu-west-1', "
        "ENDPOINT '127.0.0.1:9000', USE_SSL false, URL_STYLE 'path')",
    ]


def test_an_object_that_went_meanwhile_is_said_so(bucket: Any) -> None:
    bucket.put_object(Bucket="bench-results", Key="x/run 1.json", Body=b"1")
    objects = Objects("s3://bench-results/x", os.environ)
    assert dict(objects.read(objects.names())) == {"run 1.json": b"1"}
    with pytest.raises(ArchiveError, match="s3://bench-results/x/gone went away"):
        list(objects.read(["gone"]))
