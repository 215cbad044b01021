"""Outputs of odd kinds: whole numbers too large for float64, records, dates, objects, matrices, nothing at all."""

import numpy as np
import pytest
import torch
from harness import Call, Device, accuracy, arrays, filling
from payload_helpers import make_item, payload_of

CPU = Device()
X = np.arange(1, 257, dtype=np.float32)


def record_of(measure, **call):
    call = {"inputs": X.copy(), **call}
    return measure(payload_of(a=lambda problem: Call(**call)), make_item({}, ["a"]), CPU).records["a"]


@pytest.mark.parametrize("kind", ["int64", "uint64", "tensor"])
def test_large_integers_that_are_one_off_are_wrong(measure, kind):
    keys = np.arange(0, 1 << 20, 4096, dtype=np.uint64 if kind == "uint64" else np.int64) + (1 << 60)
    inputs = torch.from_numpy(keys) if kind == "tensor" else keys
    for off, status in ((0, "ok"), (1, "incorrect")):
        record = record_of(
            measure, run=lambda x, out, off=off: x + (7 + off), inputs=inputs, reference=lambda: keys + 7
        )
        assert record["status"] == status
        assert record["reason"] in (None, "it must equal the reference, and 256 of 256 elements do not")


def test_torchs_unsigned_integers_are_compared_too():
    output, reference = torch.arange(1, 9).to(torch.uint64), np.arange(1, 9)
    limits = accuracy.Limits.choose({}, "uint64")
    assert accuracy.compare(output, reference).objection(limits) is None
    assert "must equal" in str(accuracy.compare(output, reference + 1).objection(limits))


RECORD = np.dtype([("value", "f4"), ("number", "i4"), ("pair", "f8", (2,))])


@pytest.mark.parametrize(
    "dtype", [RECORD, "datetime64[s]", "timedelta64[ms]", object, "V2", "complex64", "longdouble"], ids=str
)
def test_every_kind_of_array_shows_what_was_not_written(dtype):
    out = np.zeros(8, dtype)[::2]
    before = out.copy()
    filling.poison(out)
    assert not arrays.same(out, before)
    names = out.dtype.names or ()
    assert all(not np.array_equal(out[name], before[name]) for name in names)


def test_a_record_that_is_not_written_is_wrong(measure):
    def make_out():
        out = np.zeros(X.size, RECORD)
        out["value"] = X + 1  # as if an earlier call had left it
        return out

    record = record_of(
        measure,
        run=lambda x, out: out,
        make_out=make_out,
        value=lambda out: out["value"],
        reference=lambda: X + 1,
    )
    assert record["status"] == "incorrect"
    assert record["reason"].startswith("256 of 256 output elements are NaN")


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (np.array(["a", "b"]), "the output is of <U1, which are no numbers: give Call.value"),
        (np.zeros(2, RECORD), "which are no numbers: give Call.value"),
    ],
)
def test_what_is_no_number_asks_for_a_value(measure, output, words):
    record = record_of(measure, run=lambda x, out: output.copy(), reference=lambda: np.zeros(2))
    assert record["status"] == "error"
    assert words in record["reason"]


def test_an_output_without_elements_is_said_to_be(measure):
    record = record_of(measure, run=lambda x, out: x[:0] * 2, reference=lambda: X[:0])
    assert (record["status"], record["reason"]) == (
        "incorrect", "the output has no elements: there is nothing to check"
    )  # fmt: skip


def test_a_numpy_matrix_is_compared_element_by_element(measure):
    x = np.matrix(X.reshape(16, 16))
    right = record_of(
        measure, run=lambda x, out: x * x, inputs=x, reference=lambda: np.asarray(x) @ np.asarray(x)
    )
    assert (right["status"], right["accuracy"]["rel_error"]) == ("ok", 0.0)
    wrong = record_of(
        measure, run=lambda x, out: x * x, inputs=x, reference=lambda: np.asarray(x) * np.asarray(x)
    )
    assert wrong["status"] == "incorrect"


def test_a_number_as_output_has_no_note_about_others(measure):
    record = record_of(measure, run=lambda x, out: (x > 5).any(), reference=lambda: np.asarray(True))
    assert (record["status"], record["reason"]) == ("ok", None)
