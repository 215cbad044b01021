"""`Call.restore`: what it does not make anew, and what its call does not read, is found before anything is timed."""

import numpy as np
import pytest
import torch
from harness import Call, Device, arrays, filling
from payload_helpers import make_item, payload_of

CPU = Device()
ROWS = np.random.default_rng(0).permutation(1 << 14).astype(np.float64)


def sort_in_place(inputs, out):
    inputs.sort()
    return inputs


def record_of(measure, **call):
    known = {"run": sort_in_place, "inputs": ROWS.copy(), "reference": lambda: np.sort(ROWS)}
    payload = payload_of(a=lambda problem: Call(**{**known, **call}))
    return measure(payload, make_item({}, ["a"]), CPU).records["a"]


def is_wrong(record, words):
    assert (record["status"], record["timing"], record["verdict"]) == ("incorrect", None, None)
    assert words in record["reason"]


def only_what_it_closed_over():
    own = ROWS.copy()
    return {"inputs": own, "restore": lambda inputs: own.__setitem__(slice(None), ROWS)}


@pytest.mark.parametrize(
    "call",
    [{"restore": lambda inputs: None}, only_what_it_closed_over()],
    ids=["nothing", "what it closed over, and not what it is handed"],
)
def test_a_restore_that_leaves_sorted_what_was_sorted(measure, call):
    is_wrong(
        record_of(measure, **call), "Call.restore leaves array 1 of the inputs (16384) as a call left it"
    )


def test_of_several_inputs_the_one_that_is_not_restored_is_named(measure):
    keys, values = ROWS.copy(), ROWS + 0.5

    def run(inputs, out):
        order = np.argsort(inputs[0])
        inputs[1][:] = inputs[1][order]
        inputs[0][:] = inputs[0][order]
        return inputs[1]

    record = record_of(
        measure,
        run=run,
        inputs=(keys, values),
        reference=lambda: np.sort(ROWS) + 0.5,
        restore=lambda inputs: inputs[0].__setitem__(slice(None), ROWS),
    )
    assert record["status"] == "incorrect", "the second is permuted again by each call"


@pytest.mark.parametrize("torch_too", [False, True])
def test_a_place_for_the_output_among_the_inputs_need_not_be_restored(measure, torch_too):
    kind = torch.from_numpy if torch_too else np.asarray
    a, b = np.random.default_rng(1).random((2, 64, 64), dtype=np.float32)

    def run(inputs, out):
        a, b, c, scratch = inputs
        scratch[:] = a
        c[:] = scratch @ b
        return c

    record = record_of(
        measure,
        run=run,
        inputs=tuple(map(kind, (a, b, np.zeros((64, 64), np.float32), np.ones((64, 64), np.float32)))),
        reference=lambda: a @ b,
        restore=lambda inputs: None,
    )
    assert (record["status"], record["reason"]) == ("ok", None)


@pytest.mark.parametrize("torch_too", [False, True])
def test_a_place_in_a_cache_that_each_call_writes_anew_need_not_be_restored(measure, torch_too):
    kind = torch.from_numpy if torch_too else np.asarray
    cache, row = np.random.default_rng(2).random((64, 16)), np.random.default_rng(3).random(16)

    def run(inputs, out):
        cache, row, length = inputs
        cache[int(length[0])] = row
        length += 1
        return cache[: int(length[0])].sum(0)

    def restore(inputs):
        inputs[2][:] = 40

    record = record_of(
        measure,
        run=run,
        inputs=tuple(map(kind, (cache.copy(), row, np.array([40])))),
        reference=lambda: cache[:40].sum(0) + row,
        restore=restore,
    )
    assert (record["status"], record["reason"]) == ("ok", None)


def test_a_right_restore_is_right_whatever_else_it_does(measure):
    def restore(inputs):
        inputs[:] = ROWS

    assert record_of(measure, restore=restore)["status"] == "ok"
    assert record_of(measure, restore=restore, repeatable=True)["status"] == "ok"


@pytest.mark.parametrize("repeatable", [False, True])
def test_results_that_are_remembered_are_found_behind_a_restore_too(measure, repeatable):
    remembered = {}

    def run(inputs, out):
        if inputs.ctypes.data not in remembered:
            remembered[inputs.ctypes.data] = np.sort(inputs)
        inputs[:] = remembered[inputs.ctypes.data]
        return inputs

    def restore(inputs):
        inputs[:] = ROWS

    record = record_of(measure, run=run, restore=restore, repeatable=repeatable)
    is_wrong(record, "the call does not read the inputs that it is handed")


@pytest.mark.parametrize(
    "dtype",
    [
        "float32",
        "bfloat16",
        "float8_e4m3fn",
        "float8_e5m2",
        "complex64",
        "bool",
        "uint8",
        "int8",
        "uint16",
        "uint32",
        "uint64",
        "int64",
    ],
)
def test_parts_of_tensors_of_every_kind_can_be_zeroed(dtype):
    leaf = torch.tensor([0, 1, 1, 1]).to(getattr(torch, dtype))
    other = torch.tensor([0, 1, 0, 1]).to(getattr(torch, dtype))
    filling.zero_where(leaf, arrays.unlike(leaf, other))
    assert leaf.to(torch.float64).tolist() == [0, 1, 0, 1]
