"""What programs print, close or raise that must not be lost, nor taken for something else."""

from __future__ import annotations

import pytest

from .conftest import Host, item
from .test_scripts import measured, only, script


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('\'{"time_us": 1, "n": \' + "9" * 5000 + "}"', "an integer of 5000 digits"),
        ('\'{"time_us": 1, "n": \' + "[" * 20000 + "]" * 20000 + "}"', "nested deeper than 100 levels"),
        ('\'{"time_us": 1, "n": \' + "[" * 300 + "]" * 300 + "}"', "nested deeper than 100 levels"),
    ],
)
def test_a_line_that_cannot_be_read_is_an_error(host: Host, line: str, words: str) -> None:
    script(host, f"print({line})")
    record = only(host)
    assert record["status"] == "error"
    assert record["reason"].startswith("a line of the results could not be read: ")
    assert words in record["reason"]


def test_integers_stay_exact(host: Host) -> None:
    script(host, f'print(\'{{"time_us": 1, "n": {2**53 + 1}, "big": {2**70 + 1}, "x": 2.5}}\')')
    assert only(host)["metrics"] == {"n": 2**53 + 1, "big": 2**70 + 1, "x": 2.5}


def test_the_time_of_a_wrong_answer_is_no_time(host: Host) -> None:
    script(host, 'print(\'{"time_us": 1, "samples_us": [1, 2], "status": "incorrect"}\')')
    record = only(host)
    assert (record["status"], record["timing"], record["samples_us"]) == ("incorrect", None, None)
    assert record["metrics"] == {}


def test_what_activate_prints_is_no_result(host: Host) -> None:
    script(host, "print('{\"time_us\": 3}')")
    host.job["activate"] = "echo '{\"time_us\": 99}'"
    assert only(host)["timing"]["median_us"] == 3


@pytest.mark.parametrize(
    ("line", "code"), [("false", 1), ("exit 3", 3), ("set -e; (exit 4); true", 4), ("sh -c 'exit 3'", 3)]
)
def test_a_failed_activate_is_named(host: Host, line: str, code: int) -> None:
    host.job["activate"] = line
    (record,) = measured(host.launch([item("c1", ("ok",))]))
    assert record["status"] == "error"
    assert record["reason"] == f"the worker ended before it was ready: activate failed: exit code {code}"


@pytest.mark.parametrize(("line", "code"), [("false", 1), ("exit 3", 3)])
def test_a_failed_activate_is_named_for_a_program(host: Host, line: str, code: int) -> None:
    script(host, "print('{\"time_us\": 3}')")
    host.job["activate"] = line
    record = only(host)
    assert (record["status"], record["reason"]) == ("error", f"activate failed: exit code {code}")


def test_what_a_payload_raises_as_it_starts_is_in_the_reason(host: Host) -> None:
    host.tree["scripts/fake.py"] = b"import no_such_module_anywhere\n"
    (record,) = measured(host.launch([item("c1", ("ok",))]))
    assert record["reason"] == (
        "the worker ended before it was ready: exit code 1: "
        "ModuleNotFoundError: No module named 'no_such_module_anywhere'"
    )
