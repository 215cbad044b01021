"""Lists and answers in 80 columns: nothing is left out, no word is broken, and a pipe gets no blanks at ends of lines."""

from __future__ import annotations

import pytest

from orchestrator.archive import Archive, RunDocument
from orchestrator.model import Measurement, Status, Timing, Verdict
from tests.e2e.conftest import Finished, Laptop

LABEL = "Expert batch=16 N=2048 (decode)"
SWEEP = """
name: message-sizes
payload: {script: bench.py}
matrix: {size_bytes: [2097152, 134217728], precision: [bfloat16], routing: [uniform], dispatch: [alltoall]}
hosts: [local]
"""


@pytest.fixture
def narrow(laptop: Laptop) -> Laptop:
    laptop.environ["COLUMNS"] = "80"
    return laptop


def kept(laptop: Laptop) -> None:
    """An archive with a run of a measurement and many that could not be."""
    archive = Archive(laptop.folder / "archive")
    document = RunDocument.model_validate(
        {"run_id": "20250102T030405Z-abcdef", "sweep": {"name": "s"}, "started_at": "2025-01-02T03:04:05Z"}
    )
    timing = Timing(
        timer="graph", cache="cold", median_us=12.5, p20_us=12, p80_us=13, samples=3, calls_per_sample=1
    )
    measured = Measurement(
        run_id="20250102T030405Z-abcdef", host="local", case_id="99499d4ee5693753", label=LABEL, payload="p",
        params={"m": 16}, backend="flashinfer:cutlass", status=Status.OK, verdict=Verdict.VALID, timing=timing,
    )  # fmt: skip
    lacking = [
        measured.model_copy(
            update={"backend": f"b{n}", "status": Status.UNSUPPORTED, "verdict": None, "timing": None}
        )
        for n in range(12)
    ]
    archive.create("20250102T030405Z-abcdef", document, {}).commit(
        [measured, *lacking], "finished", ended_at="2025-01-02T04:00:00Z"
    )


def fits(done: Finished) -> list[str]:
    assert done.code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line != line.rstrip()] == []
    return lines


def test_every_column_of_a_query_is_shown(narrow: Laptop) -> None:
    kept(narrow)
    ask = "select * from results where status = 'ok'"
    columns = narrow.farbench("query", ask, "--json").json()["columns"]
    lines = fits(narrow.farbench("query", ask))
    assert len(columns) > 25
    assert [line.split()[0] for line in lines if line[0] != " "] == columns
    assert any(line.split() == ["label", *LABEL.split()] for line in lines)
    (rows,) = [fits(narrow.farbench("query", "select run_id, backend from results where status = 'ok'"))[2:]]
    assert [row.split() for row in rows] == [["20250102T030405Z-abcdef", "flashinfer:cutlass"]]


def test_lists_break_no_word(narrow: Laptop) -> None:
    kept(narrow)
    text = "\n".join(fits(narrow.farbench("runs")))
    assert "measurements" in text.split()
    assert "unsupported" in text.split()

    lines = fits(narrow.farbench("history", "*batch=16*"))
    assert len(lines) == 4  # a head, a rule, and two lines for the row
    assert LABEL in lines[2]

    python = "/opt/a/long/way/to/an/environment/with/torch/bin/python"
    narrow.write(
        "hosts.yaml", f"hosts: {{local: {{embedded: true, tags: [gpu]}}, far: {{address: {python}}}}}"
    )
    assert python in "\n".join(fits(narrow.farbench("hosts", "--offline"))).split()

    narrow.write("bench.py", "")
    narrow.write("sweep.yaml", SWEEP)
    words = "\n".join(fits(narrow.farbench("plan", "sweep.yaml", "--host", "local"))).split()
    assert "size_bytes=2097152" in words
    assert "size_bytes=134217728" in words


def test_payloads_are_a_short_list_and_one_in_full(narrow: Laptop) -> None:
    every = narrow.farbench("payloads")
    lines = fits(every)
    assert len(lines) < 60
    assert any(line.startswith("gemm_fp4 ") for line in lines)
    assert "sgl_kernel" in every.stdout
    assert "out_dtype" not in every.stdout
    assert "farbench payloads NAME" in every.stderr

    lines = [line.strip() for line in fits(narrow.farbench("payloads", "gemm_fp4"))]
    parameters, backends = lines.index("parameters"), lines.index("backends")
    assert parameters < next(n for n, line in enumerate(lines) if line.startswith("out_dtype ")) < backends
    assert backends < next(n for n, line in enumerate(lines) if line.startswith("sgl_kernel "))
