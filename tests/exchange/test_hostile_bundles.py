"""What somebody could send instead of a run: refused, and nothing of it stays, inside the archive or outside."""

from __future__ import annotations

import hashlib
import io
import json
import resource
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from orchestrator.archive import Archive
from orchestrator.archive.bundle import export_run
from orchestrator.archive.unbundle import import_run
from orchestrator.errors import FileError
from tests.exchange.conftest import ROOT, contents

RUN_ID = "20250102T030405Z-abcdef"
RUN_JSON = json.dumps(
    {"schema_version": 1, "run_id": RUN_ID, "sweep": {"name": "x"}, "state": "finished"}
).encode()
FILES = {"run/run.json": RUN_JSON, "run/results.jsonl": b""}
Change = Callable[[dict[str, Any]], None]


def listed(files: dict[str, bytes]) -> list[dict[str, Any]]:
    return [
        {"path": name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in files.items()
    ]


def packed(files: dict[str, bytes], manifest: dict[str, Any] | None = None, **kinds: bytes) -> bytes:
    """A bundle; `kinds` gives members another type, by their last name."""
    told = {"format": 1, "run_id": RUN_ID, "files": listed(files), **(manifest or {})}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in {"farbench-run.json": json.dumps(told).encode(), **files}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            kind = kinds.get(name.rsplit("/", 1)[-1].split(".")[0])
            if kind is not None:
                member.type, member.linkname, member.size, content = kind, "/etc/passwd", 0, b""
            tar.addfile(member, io.BytesIO(content))
    return zstandard.compress(out.getvalue())


def refused(archive: Archive, tmp_path: Path, content: bytes, match: str, **limits: int) -> None:
    file = tmp_path / "sent" / "x.tar.zst"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    outside = {p for p in tmp_path.rglob("*") if archive.path not in (p, *p.parents)}
    with pytest.raises(FileError, match=match) as caught:
        import_run(archive, file, **limits)
    assert str(caught.value).startswith(f"{file}: ")
    assert contents(archive.path) == {}
    assert {p for p in tmp_path.rglob("*") if archive.path not in (p, *p.parents)} == outside


def test_what_these_tests_build_is_taken_when_it_is_honest(archive: Archive, tmp_path: Path):
    (tmp_path / "x").write_bytes(packed(FILES))
    assert import_run(archive, tmp_path / "x").folder.run_id == RUN_ID


@pytest.mark.parametrize(
    "name",
    [
        "run/../../../evil", "/etc/evil", "../evil", "evil", "run/./x", "run//x", "run/x/..", "run/", "run",
        "run/" + "d/" * 40 + "x", "run/" + "x" * 256, "run/a\0b", "runs/x",
    ],
)  # fmt: skip
def test_paths_that_lead_elsewhere(archive: Archive, tmp_path: Path, name: str):
    sent = {"format": 1, "run_id": RUN_ID, "files": listed({**FILES, name: b"x"})}
    refused(archive, tmp_path, packed(FILES, sent), "outside of the run|cannot be kept")


@pytest.mark.parametrize(
    "kind",
    [
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.CHRTYPE,
        tarfile.BLKTYPE,
        tarfile.FIFOTYPE,
        tarfile.DIRTYPE,
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_SPARSE,
        b"g",
    ],
)
def test_members_that_are_no_plain_files(archive: Archive, tmp_path: Path, kind: bytes):
    refused(
        archive,
        tmp_path,
        packed({**FILES, "run/logs/evil.log": b""}, evil=kind),
        "no plain file|damaged|is not what",
    )


@pytest.mark.parametrize(
    ("manifest", "told"),
    [
        ({"format": 2}, "newer farbench"),
        ({"run_id": "../x"}, "cannot be the id"),
        ({"run_id": "other"}, "run.json: is of another run"),
        ({"run_id": 7}, "run_id"),
        ({"files": listed({"run/run.json": RUN_JSON})}, "has no results.jsonl"),
        ({"files": listed(FILES) * 2}, "lists a file twice"),
        ({"files": listed({**FILES, "run/more": b"x"})}, "more is missing"),
        ({"files": listed({**FILES, "run/results.jsonl": b"x"})}, "is not what its list of files says"),
        ({"files": listed({"run/results.jsonl": b"", "run/run.json": RUN_JSON})}, "is not what its list"),
        ({"files": [{"path": "run/run.json", "size": -1, "sha256": "0" * 64}]}, "greater than or equal"),
        ({"files": [{**entry, "size": 2**80} for entry in listed(FILES)]}, "more than 16|size"),
        ({"files": "x"}, "valid array"),
    ],
)
def test_lists_that_lie(archive: Archive, tmp_path: Path, manifest: dict[str, Any], told: str):
    refused(archive, tmp_path, packed(FILES, manifest), told)


def test_a_file_more_than_the_list_says(archive: Archive, tmp_path: Path):
    refused(
        archive,
        tmp_path,
        packed({**FILES, "run/more": b"x"}, {"files": listed(FILES)}),
        "'run/more' is not what",
    )


def test_other_content_of_the_same_size(archive: Archive, tmp_path: Path):
    sent = packed(
        FILES | {"run/run.json": RUN_JSON.replace(b"finished", b"finishes")}, {"files": listed(FILES)}
    )
    refused(archive, tmp_path, sent, r"run\.json is damaged: its hash")


def test_two_files_of_one_name(archive: Archive, tmp_path: Path):
    refused(archive, tmp_path, packed({**FILES, "run/a": b"", "run/a/b": b""}), "have one name")


@pytest.mark.parametrize(
    "content", [b"{", b'{"schema_version": 9, "run_id": "x", "sweep": {"name": "x"}}', b"[]"]
)
def test_a_run_json_that_is_none(archive: Archive, tmp_path: Path, content: bytes):
    refused(archive, tmp_path, packed({**FILES, "run/run.json": content}), r"its run\.json")


def test_notes_that_are_none(archive: Archive, tmp_path: Path):
    refused(archive, tmp_path, packed({**FILES, "notes.json": b'{"tags": ["a b"]}'}), "cannot be a tag")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\x28\xb5\x2f\xfd", "ends too early"),
        (b"\x28\xb5\x2f\xfd" + b"\xff" * 64, "is damaged, or not a bundle"),
        (zstandard.compress(b""), "ends too early"),
        (zstandard.compress(b"x" * 4096), "damaged"),
        (zstandard.compress(bytes(1024)), "does not begin with"),
        (packed({}, {"files": []}), "has no results"),
    ],
)
def test_files_that_are_no_bundle(archive: Archive, tmp_path: Path, content: bytes, told: str):
    refused(archive, tmp_path, content, told)


def test_every_cut_is_noticed(archive: Archive, tmp_path: Path, commit, elsewhere: Archive):
    export_run(elsewhere, commit(elsewhere, RUN_ID), tmp_path / "x.tar.zst")
    whole = (tmp_path / "x.tar.zst").read_bytes()
    # The last bytes are zstd's own checksum, without which nothing is missing: each file has its hash.
    for length in range(4, len(whole) - 3, max(1, len(whole) // 60)):
        refused(archive, tmp_path, whole[:length], "is damaged, or not a bundle")
    for position in range(12, len(whole), max(1, len(whole) // 60)):  # one byte differs
        refused(
            archive,
            tmp_path,
            whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :],
            "is damaged, or not a bundle",
        )


def test_what_follows_the_end_is_refused(archive: Archive, tmp_path: Path):
    plain = zstandard.decompress(packed(FILES))
    refused(archive, tmp_path, zstandard.compress(plain + b"x"), "something follows")
    refused(archive, tmp_path, zstandard.compress(plain + bytes(10**6)), "something follows")


def test_a_limit_on_what_it_unpacks_to(archive: Archive, tmp_path: Path):
    sent = packed({**FILES, "run/logs/big": bytes(3 * 2**20)})
    assert len(sent) < 2**20
    refused(archive, tmp_path, sent, "unpacks to 0.00 GiB, more than", most_bytes=2**20)


BOMB = """
import sys
from pathlib import Path
from orchestrator.archive import Archive
from orchestrator.archive.unbundle import import_run
from orchestrator.errors import FileError
try:
    import_run(Archive(sys.argv[1]), Path(sys.argv[2]))
except FileError as error:
    print(error)
"""


def _bomb(kind: bytes, size: int) -> bytes:
    """A tar that begins with a header of `size` bytes of zeros: megabytes of them in a few hundred bytes."""
    compressor = zstandard.ZstdCompressor(level=3).compressobj()
    member = tarfile.TarInfo("farbench-run.json")
    member.type, member.size = kind, size
    out = [compressor.compress(member.tobuf(tarfile.GNU_FORMAT))]
    out += [compressor.compress(bytes(2**24)) for _ in range(size >> 24)]
    return b"".join([*out, compressor.flush()])


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_bomb_takes_no_memory(archive: Archive, tmp_path: Path, kind: bytes):
    (tmp_path / "bomb").write_bytes(_bomb(kind, 2**31))
    assert (tmp_path / "bomb").stat().st_size < 2**20

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1536 * 2**20, 1536 * 2**20))

    done = subprocess.run(
        [sys.executable, "-c", BOMB, str(archive.path), str(tmp_path / "bomb")],
        cwd=ROOT, preexec_fn=limited, capture_output=True, encoding="utf-8", timeout=100,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "is damaged, or not a bundle of a run" in done.stdout
    assert contents(archive.path) == {}
