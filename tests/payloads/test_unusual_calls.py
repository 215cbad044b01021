"""Calls that overwrite their inputs, that have to be told of a capture, or that bring figures of their own."""

import pytest
import torch
from harness import Call, Device, Payload
from payload_helpers import STANDINS, make_item

GPU = Device("a clock", (9, 0), "cpu:0")
HOT = {"cache": "hot", "timer": "auto", "min_time_ms": 3, "max_time_ms": 5000, "rounds": 3}
COLD = {**HOT, "cache": "cold"}


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(str(STANDINS))
    from fakecuda import FakeGpu

    made = FakeGpu()
    made.install(monkeypatch)
    return made


def payload_of(call):
    payload = Payload("test", prepare=lambda params, device: None)
    payload.backend("a")(lambda problem: call)
    return payload


def in_place(gpu, effect, **options):
    """Rounds its input down in place: repeated, it gives the same again."""
    original = torch.arange(64.0) + 0.5

    def run(inputs, out):
        assert out is None
        gpu.launch(10.0, lambda: effect(inputs), **options)
        return inputs

    return Call(
        run=run,
        inputs=original.clone(),
        reference=lambda: original.floor(),
        restore=lambda inputs: inputs.copy_(original),
    )


@pytest.mark.parametrize("measure_as", [HOT, COLD])
def test_a_call_in_place_is_checked_with_its_inputs_restored(gpu, measure, measure_as):
    call = in_place(gpu, torch.Tensor.floor_)
    record = measure(payload_of(call), make_item({}, ["a"], measure=measure_as), GPU).records["a"]
    assert (record["status"], record["verdict"], record["reason"]) == ("ok", "valid", None)
    assert record["timing"]["timer"] == "graph"
    assert record["timing"]["median_us"] == pytest.approx(10.0)


def test_a_call_in_place_that_does_nothing_is_found_out(gpu, measure):
    record = measure(payload_of(in_place(gpu, lambda x: x)), make_item({}, ["a"], measure=HOT), GPU).records[
        "a"
    ]
    assert record["status"] == "incorrect"


def test_a_call_in_place_that_escapes_the_capture_is_found_out(gpu, measure):
    call = in_place(gpu, torch.Tensor.floor_, escapes=True)
    record = measure(payload_of(call), make_item({}, ["a"], measure=HOT), GPU).records["a"]
    assert record["timing"]["timer"] == "events"
    assert "kernels escape the graph's capture" in record["reason"]


def test_a_library_is_told_of_each_capture_before_the_replay(gpu, measure):
    x = torch.arange(64.0)
    registered, pending = set(), []

    def run(inputs, out):
        where = out.data_ptr()
        if gpu.capturing is not None:
            pending.append(where)

        def effect():
            if gpu.capturing is None and replaying[0]:
                assert where in registered, "a replay before the capture was told"
            torch.mul(inputs, 2, out=out)

        replaying = [gpu.capturing is not None]
        gpu.launch(4.0 if replaying[0] else 10.0, effect)
        return out

    def captured():
        registered.update(pending)
        pending.clear()

    call = Call(
        run=run, inputs=x, make_out=lambda: torch.empty_like(x), reference=lambda: x * 2, captured=captured
    )
    record = measure(payload_of(call), make_item({}, ["a"], measure=COLD), GPU).records["a"]
    assert (record["status"], record["verdict"]) == ("ok", "valid")
    assert record["timing"]["median_us"] == pytest.approx(4.0)
    assert "cross_check_us" not in record["extra"], "an eager call does something else"
    assert pending == []


def test_a_call_brings_figures_of_its_own(measure):
    x = torch.arange(8.0)
    call = Call(
        run=lambda inputs, out: torch.mul(inputs, 2, out=out),
        inputs=x,
        make_out=lambda: torch.empty_like(x),
        reference=lambda: x * 2,
        metrics=lambda median_us: {"per_second": 1e6 / median_us},
    )
    record = measure(payload_of(call), make_item({}, ["a"]), Device()).records["a"]
    assert record["metrics"]["per_second"] == pytest.approx(1e6 / record["timing"]["median_us"])
