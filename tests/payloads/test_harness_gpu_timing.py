"""How GPU work is timed, on a GPU that exists only as a clock."""

import pytest
import torch
from harness import Call, Device, Payload, Reported
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


def doubling(gpu, us=10.0, allocates=False, **options):
    """A call of one kernel that doubles its input in `us`."""
    x = torch.arange(1.0, 2049.0)

    def run(inputs, out):
        if out is None:
            gpu.allocated += 1
            out = torch.empty_like(inputs)
        took = us(inputs) if callable(us) else us
        gpu.launch(took, lambda: torch.mul(inputs, 2, out=out), **options)
        return out

    return Call(
        run=run,
        inputs=x,
        reference=lambda: x * 2,
        make_out=None if allocates else (lambda: torch.empty_like(x)),
    )


def payload_of(**calls):
    payload = Payload("test", prepare=lambda params, device: None)
    for name, call in calls.items():
        payload.backend(name)(lambda problem, call=call: call)
    return payload


def test_a_graph_of_calls_gives_the_time_of_one(gpu, measure):
    record = measure(payload_of(a=doubling(gpu)), make_item({}, ["a"], measure=HOT), GPU).records["a"]
    assert (record["status"], record["verdict"], record["reason"]) == ("ok", "valid", None)
    timing = record["timing"]
    assert (timing["timer"], timing["cache"]) == ("graph", "hot")
    assert timing["median_us"] == pytest.approx(10.0)
    assert timing["calls_per_sample"] == 30  # 300 µs
    assert timing["host_us"] > 0
    assert timing["hot_median_us"] is None
    assert record["extra"]["cross_check_us"] == {
        "graph": pytest.approx(10.0),
        "back_to_back": pytest.approx(10.0),
    }


def test_cold_rotates_a_ring_of_five_l2_caches_and_hot_is_told_beside_it(gpu, measure):
    from fakecuda import L2_BYTES

    last = []

    def us(inputs):
        hot = inputs.data_ptr() in last[-1:]
        last.append(inputs.data_ptr())
        return 4.0 if hot else 9.0

    record = measure(payload_of(a=doubling(gpu, us)), make_item({}, ["a"], measure=COLD), GPU).records["a"]
    timing = record["timing"]
    assert timing["cache"] == "cold"
    assert timing["median_us"] == pytest.approx(9.0)
    assert timing["hot_median_us"] == pytest.approx(4.0, rel=0.2)
    set_bytes = 2 * 2048 * 4
    assert (record["extra"]["input_sets"] - 1) * set_bytes >= 5 * L2_BYTES
    assert timing["calls_per_sample"] % record["extra"]["input_sets"] == 0


def test_what_cannot_be_captured_is_timed_by_events_and_says_so(gpu, measure):
    gpu.refuses_capture = True
    record = measure(payload_of(a=doubling(gpu)), make_item({}, ["a"], measure=COLD), GPU).records["a"]
    assert record["status"] == "ok"
    assert (record["timing"]["timer"], record["timing"]["calls_per_sample"]) == ("events", 1)
    assert record["timing"]["median_us"] == pytest.approx(10.0)
    assert "not captured in a graph (CUDA error: operation not permitted" in record["reason"]
    assert record["reason"].endswith("measured by events")
    assert gpu.slept > 0


def test_kernels_that_escape_the_capture_are_caught(gpu, measure):
    record = measure(
        payload_of(a=doubling(gpu, escapes=True)), make_item({}, ["a"], measure=HOT), GPU
    ).records["a"]
    assert record["timing"]["timer"] == "events"
    assert record["timing"]["median_us"] == pytest.approx(10.0)
    assert "kernels escape the graph's capture" in record["reason"]


def test_a_graph_that_is_faster_than_its_calls_is_suspect(gpu, measure):
    captured = doubling(gpu, lambda inputs: 10.0 if gpu.capturing is None else 5.0)
    record = measure(payload_of(a=captured), make_item({}, ["a"], measure=HOT), GPU).records["a"]
    assert (record["verdict"], record["reasons"]) == ("suspect", ["timers_disagree"])
    assert record["timing"]["median_us"] == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("device", "options", "words"),
    [
        (Device("a clock", (9, 0), "cuda:0"), {}, "make them on device.torch_device (cuda)"),
        (Device("a clock", (9, 0), "cpu:0"), {"on_cpu": True, "inputs": torch.ones(4, device="meta")}, "arrays of it lie on meta"),
    ],
    ids=["the CPU's work by the GPU's clock", "launches by the host's clock"],
)  # fmt: skip
def test_work_that_the_timer_would_not_see_is_refused(gpu, measure, device, options, words):
    """Events find a µs or two around a call that does nothing on their stream, and the host's clock nothing but launches."""
    call = doubling(gpu)
    for name, value in options.items():
        setattr(call, name, value)
    if "inputs" in options:
        call.run = lambda inputs, out: inputs * 2
    record = measure(payload_of(a=call), make_item({}, ["a"], measure=HOT), device).records["a"]
    assert (record["status"], record["timing"]) == ("incorrect", None)
    assert words in record["reason"]


@pytest.mark.parametrize(
    ("declared", "how", "told"),
    [
        (
            {"flops": 2.3 * 210e12 * 1e-6, "precision": "bf16"},
            HOT,
            "2.3 times the device's peak of arithmetic: flops is wrong, or the work is not done",
        ),
        ({"flops": 0.9 * 210e12 * 1e-6, "precision": "bf16"}, HOT, None),
        ({"bytes_moved": 1.3 * 1.79e12 * 1e-6}, HOT, None),
        (
            {"bytes_moved": 1.3 * 1.79e12 * 1e-6},
            COLD,
            "1.3 times the device's peak of memory: bytes_moved is wrong, or the work is not done",
        ),
        ({"bytes_moved": 0.9 * 1.79e12 * 1e-6}, COLD, None),
    ],
)
def test_more_than_the_device_can_do_is_suspect(gpu, measure, monkeypatch, declared, how, told):
    from harness import cuda

    monkeypatch.setattr(cuda, "l2_bytes", lambda: 1 << 16)
    x = torch.zeros(1 << 18) + 1  # 2 MiB with its output: none of these bytes are more than twice of it
    call = Call(
        run=lambda inputs, out: (gpu.launch(1.0, lambda: torch.mul(inputs, 2, out=out)), out)[1],
        inputs=x, reference=lambda: x * 2, make_out=lambda: torch.empty_like(x), **declared,
    )  # fmt: skip
    device = Device("NVIDIA GeForce RTX 5090", (12, 0), "cpu:0")
    record = measure(payload_of(a=call), make_item({}, ["a"], measure=how), device).records["a"]
    assert (record["timing"]["cache"], record["timing"]["timer"]) == (how["cache"], "graph")
    assert (record["reason"], record["verdict"]) == (told, "suspect" if told else "valid")
    assert record["reasons"] == []


@pytest.mark.parametrize("how", [HOT, COLD])
def test_results_that_were_there_already_when_a_graph_was_captured_are_found(gpu, measure, how):
    """A capture that finds results of eager calls holds nothing but copies of them."""
    call, kept = doubling(gpu), {}

    def run(inputs, out):
        place = inputs.data_ptr()
        if gpu.capturing is None:
            kept[place] = inputs * 2
            gpu.launch(10.0, lambda: torch.mul(inputs, 2, out=out))
        else:
            gpu.launch(9.0, lambda: out.copy_(kept[place]))
        return out

    call.run = run
    record = measure(payload_of(a=call), make_item({}, ["a"], measure=how), GPU).records["a"]
    assert (record["status"], record["timing"]) == ("incorrect", None)
    assert "after it was timed, the call does not read the inputs" in record["reason"]


def test_what_reads_an_output_may_refuse_one_without_inputs(gpu, measure):
    call = doubling(gpu)

    def value(output):
        if not output.any() or output.isnan().any():
            raise ValueError("no such codes")
        return output

    call.value = value
    record = measure(payload_of(a=call), make_item({}, ["a"], measure=HOT), GPU).records["a"]
    assert (record["status"], record["timing"]["timer"], record["reason"]) == ("ok", "graph", None)


def test_events_when_asked_for(gpu, measure):
    item = make_item({}, ["a"], measure={**HOT, "timer": "events"})
    record = measure(payload_of(a=doubling(gpu)), item, GPU).records["a"]
    assert (record["timing"]["timer"], record["reason"]) == ("events", None)


def test_a_host_timer_never_stands_in_for_gpu_time(gpu, measure):
    item = make_item({}, ["a"], measure={**HOT, "timer": "host"})
    record = measure(payload_of(a=doubling(gpu)), item, GPU).records["a"]
    assert record["timing"]["timer"] == "graph"
    assert "timer host is not used for GPU work" in record["reason"]


def test_allocations_inside_a_call_are_counted(gpu, measure):
    payload = payload_of(own=doubling(gpu), allocates=doubling(gpu, allocates=True))
    records = measure(payload, make_item({}, ["own", "allocates"], measure=HOT), GPU).records
    assert records["own"]["extra"]["allocations_per_call"] == 0
    assert records["allocates"]["extra"]["allocations_per_call"] == 1


class Cache:
    """What a call finds in an L2 cache of `fakecuda.L2_BYTES` that a flush empties; the least recently used leaves first."""

    def __init__(self, monkeypatch, set_bytes):
        from fakecuda import L2_BYTES
        from harness import cuda

        self._room = L2_BYTES // set_bytes
        self._held = []
        self.flushes = 0
        monkeypatch.setattr(cuda, "L2Flush", lambda device: self.flush)

    def flush(self):
        self.flushes += 1
        self._held.clear()

    def finds(self, inputs):
        place = inputs.data_ptr()
        found = place in self._held
        self._held = ([place] + [held for held in self._held if held != place])[: self._room]
        return found


def with_cache(gpu, cache, elements, cold_us, hot_us):
    """A call that doubles a few numbers, faster where it finds them in the cache: at its replay, not at its capture."""
    x = torch.arange(1.0, elements + 1.0)

    def run(inputs, out):
        def effect():
            torch.mul(inputs, 2, out=out)
            if cache.finds(inputs):
                gpu.clock_us -= cold_us - hot_us

        gpu.launch(cold_us, effect)
        return out

    return Call(run=run, inputs=x, reference=lambda: x * 2, make_out=lambda: torch.empty_like(x))


@pytest.mark.parametrize(
    ("elements", "cold_us", "sets"),
    [
        (4, 4.0, 1024),  # 32 bytes: no ring of a bearable number of sets would fill five caches
        (128, 2500.0, 2),  # 1 kB, but a pass over all 321 sets would take 800 ms
    ],
)
def test_a_ring_that_would_be_too_long_is_short_and_finds_the_cache_evicted(
    gpu, measure, monkeypatch, elements, cold_us, sets
):
    cache = Cache(monkeypatch, set_bytes=8 * elements)
    call = with_cache(gpu, cache, elements, cold_us, cold_us / 2)
    record = measure(payload_of(a=call), make_item({}, ["a"], measure=COLD), GPU).records["a"]
    timing, extra = record["timing"], record["extra"]
    assert (timing["timer"], timing["cache"], record["reason"]) == ("graph", "cold", None)
    assert timing["median_us"] == pytest.approx(cold_us)
    assert timing["hot_median_us"] == pytest.approx(cold_us / 2, rel=0.1)
    assert (extra["input_sets"], timing["calls_per_sample"]) == (sets, sets)
    assert extra["evicted_each_pass"] is True
    assert extra["cross_check_us"]["back_to_back"] == pytest.approx(cold_us)
    assert cache.flushes > timing["samples"]


def test_a_device_that_dies_in_the_rounds_fails_one_backend_and_keeps_the_others_samples(gpu, measure):
    def us(inputs):
        if gpu.launches > 2000:
            gpu.dead = True
        return 10.0

    fine, dying = doubling(gpu), doubling(gpu, us)
    item = make_item(
        {}, ["fine", "dying"], measure={**HOT, "timer": "events", "min_time_ms": 60, "rounds": 50}
    )
    recorder = measure(payload_of(fine=fine, dying=dying), item, GPU)
    assert not recorder.healthy
    assert recorder.records["dying"]["status"] == "crashed"
    assert "illegal memory access" in recorder.records["dying"]["reason"]
    assert recorder.records["fine"]["timing"]["median_us"] == pytest.approx(10.0)


@pytest.mark.parametrize("timer", ["auto", "events"])
def test_work_on_a_stream_that_nobody_waits_for_is_not_timed_by_events(gpu, measure, timer):
    item = make_item({}, ["a"], measure={**HOT, "timer": timer})

    def run(inputs, out):
        gpu.launch(1.0, lambda: None)
        gpu.launch(200.0, lambda: torch.mul(inputs, 2, out=out), elsewhere=True)
        return out

    call = doubling(gpu)
    call.run = run
    record = measure(payload_of(a=call), item, GPU).records["a"]
    assert (record["status"], record["verdict"]) == ("ok", "suspect")
    assert record["reasons"] == ["timers_disagree"]
    assert record["extra"]["cross_check_us"]["events"] == pytest.approx(1.0)
    assert record["extra"]["cross_check_us"]["host"] > 150
    if timer == "auto":
        assert "kernels escape the graph's capture" in record["reason"]


def test_results_that_are_kept_are_found_though_a_graph_captures_nothing_of_them(gpu, measure):
    known = {}
    call = doubling(gpu)
    run = call.run

    def remembering(inputs, out):
        if inputs.data_ptr() not in known:
            known[inputs.data_ptr()] = run(inputs, torch.empty_like(inputs))
        return known[inputs.data_ptr()]

    call.run = remembering
    record = measure(payload_of(a=call), make_item({}, ["a"], measure=COLD), GPU).records["a"]
    assert (record["status"], record["timing"]) == ("incorrect", None)


def test_what_goes_wrong_while_it_is_timed_is_found_after_the_rounds(gpu, measure):
    calls = {"a": doubling(gpu), "b": doubling(gpu)}
    turns = iter(range(10**9))

    def run(inputs, out):
        late = next(turns) > 40
        gpu.launch(10.0, lambda: torch.mul(inputs, 3 if late else 2, out=out))
        return out

    calls["a"].run = run
    item = make_item({}, ["a", "b"], measure={**HOT, "timer": "events"})
    records = measure(payload_of(**calls), item, GPU).records
    assert (records["a"]["status"], records["a"]["timing"]) == ("incorrect", None)
    assert "after it was timed, the call computes something else" in records["a"]["reason"]
    assert records["b"]["status"] == "ok"


def test_who_is_measured_first_is_not_faster(gpu, measure):
    """Once a process has used several streams, kernels start later after one another; each capture uses one."""
    gpu.crowded_us = 1.0
    calls = {name: doubling(gpu) for name in "abcdef"}
    payload = payload_of(**calls)

    @payload.backend("loop")
    def loop(problem):
        gpu.streams.clear()  # a thousand launches on one stream undo it
        return Reported(samples_us=(1.0,) * 8)

    found = [
        measure(payload, make_item({"case": number}, [*calls, "loop"], measure=COLD), GPU).records
        for number in range(2)
    ]
    timings = [records[name]["timing"] for records in found for name in calls]
    assert {round(timing["median_us"], 6) for timing in timings} == {11.0}
    assert {round(timing["hot_median_us"], 6) for timing in timings} == {11.0}
