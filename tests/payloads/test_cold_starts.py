"""What a first call costs is told apart from what a call costs; and values of any kind end up in strict JSON."""

import json
import math
import pathlib
import time

import numpy as np
import pytest
from harness import Call, Device, Payload, Reported
from payload_helpers import make_item


def slow_first_call(seconds):
    calls = []

    def build(problem):
        x = np.arange(8.0)

        def run(inputs, out):
            if not calls:
                time.sleep(seconds)
            calls.append(1)
            return np.multiply(inputs, 2, out=out)

        return Call(run=run, inputs=x, make_out=lambda: np.empty(8), reference=lambda: x * 2)

    return build


def test_a_first_call_that_compiles_is_kept_out_of_the_time_and_flagged(measure):
    payload = Payload("test", prepare=lambda params, device: None)
    payload.backend("compiles")(slow_first_call(1.1))
    cold, warm = (
        measure(payload, make_item({}, ["compiles"]), Device()).records["compiles"] for _ in range(2)
    )
    assert cold["timing"]["compile_s"] >= 1.1
    assert cold["timing"]["median_us"] < 1e5
    assert max(cold["samples_us"]) < 1e6
    assert cold["extra"]["cold_start"] is True
    assert warm["timing"]["compile_s"] < cold["timing"]["compile_s"]
    assert "cold_start" not in warm["extra"]


STRANGE = {
    "nan": math.nan, "inf": math.inf, "numpy": np.float32(1), "numpy_nan": np.float64("nan"), "path": pathlib.Path("/x"),
    "huge": 10**400, "bytes": b"\xff", "set": {2, 1}, "array": np.arange(3), "surrogate": "\ud800", "bool": np.bool_(True),
}  # fmt: skip


@pytest.mark.parametrize("where", ["metrics", "extra"])
def test_values_of_any_kind_are_saved_as_strict_json(measure, where):
    payload = Payload("test", prepare=lambda params, device: None)
    payload.backend("strange")(lambda problem: Reported(samples_us=(1.0,) * 8, **{where: STRANGE}))
    record = measure(payload, make_item({}, ["strange"]), Device()).records["strange"]
    assert record["status"] == "ok"
    text = json.dumps(record, allow_nan=False)
    assert json.loads(text, parse_constant=pytest.fail) == record
    everything = {**record["extra"], **record["metrics"]}
    assert (everything["nan"], everything["inf"], everything["numpy"], everything["numpy_nan"]) == (
        None,
        None,
        1.0,
        None,
    )
    assert (everything["path"], everything["huge"], everything["set"]) == ("/x", 10**400, [1, 2])
    assert (everything["array"], everything["bool"]) == ([0, 1, 2], True)
    for problem in ("nan is NaN", "inf is infinite", "numpy_nan is NaN"):
        assert f"{where}.{problem}" in record["reason"]


@pytest.mark.parametrize("sample", [math.nan, math.inf])
def test_a_time_that_is_no_number_is_an_error_and_not_a_row_of_nan(measure, sample):
    payload = Payload("test", prepare=lambda params, device: None)
    payload.backend("broken")(lambda problem: Reported(samples_us=(1.0, sample) * 8))
    record = measure(payload, make_item({}, ["broken"]), Device()).records["broken"]
    assert (record["status"], record["verdict"], record["timing"]) == ("error", None, None)
    assert "samples_us" in record["reason"]
