"""CUPTI as a timer and as the graph's witness, where it is installed and matches; and what is done where it is not."""

import pytest
import torch
from harness import Call, Device, Payload, kernel_trace
from payload_helpers import STANDINS, make_item

GPU = Device("a clock", (9, 0), "cpu:0")
HOT = {"cache": "hot", "timer": "cupti", "min_time_ms": 3, "max_time_ms": 5000, "rounds": 3}
COLD = {**HOT, "cache": "cold"}
FLUSH_US = 70.0


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(str(STANDINS))
    from fakecuda import FakeGpu
    from harness import cuda

    made = FakeGpu()
    made.install(monkeypatch)
    flush = lambda: made.launch(FLUSH_US, lambda: None, name="reduce_kernel")  # noqa: E731
    monkeypatch.setattr(cuda, "L2Flush", lambda device: flush)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    kernel_trace.forget()
    yield made
    kernel_trace.forget()


@pytest.fixture
def install(gpu, monkeypatch, tmp_path):
    """Install cupti-python in a version, and maybe the library that it binds, as pip does."""

    def make(version="13.0.1", library=None):
        from cupti import cupti

        cupti.reset()
        gpu.record = cupti.record
        for name, found in (("cupti_python", version), ("nvidia_cuda_cupti", library)):
            if found is not None:
                folder = tmp_path / f"{name}-{found}.dist-info"
                folder.mkdir()
                (folder / "METADATA").write_text(
                    f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {found}\n"
                )
        monkeypatch.syspath_prepend(str(tmp_path))
        return cupti

    return make


def calls(gpu, *kernels, us=None):
    """A call that doubles its input by kernels of these lengths."""
    x = torch.arange(1.0, 2049.0)

    def run(inputs, out):
        for number, took in enumerate(kernels):
            effect = (lambda: torch.mul(inputs, 2, out=out)) if number == 0 else (lambda: None)
            gpu.launch(us(took) if us else took, effect, name=f"part{number}")
        return out

    return Call(run=run, inputs=x, reference=lambda: x * 2, make_out=lambda: torch.empty_like(x))


def payload_of(call):
    payload = Payload("test", prepare=lambda params, device: None)
    payload.backend("a")(lambda problem: call)
    return payload


@pytest.fixture
def measured(measure):
    def run(call, how=None):
        return measure(payload_of(call), make_item({}, ["a"], measure=how or HOT), GPU).records["a"]

    return run


def test_a_sample_is_from_the_first_kernels_start_to_the_last_ones_end(gpu, install, measured):
    cupti = install()
    record = measured(calls(gpu, 6.0, 1.5))
    assert (record["status"], record["verdict"], record["reason"]) == ("ok", "valid", None)
    timing = record["timing"]
    assert (timing["timer"], timing["cache"], timing["calls_per_sample"]) == ("cupti", "hot", 1)
    assert timing["median_us"] == pytest.approx(7.5)
    assert timing["samples"] >= 6
    assert timing["host_us"] > 0
    assert not cupti.attached(), "outside of the turns nothing is recorded, and no launch is slower"


def test_cold_evicts_the_cache_before_each_call_and_does_not_count_it(gpu, install, measured):
    install()
    last = []
    in_cache = lambda took: 2.0 if last[-1:] == ["part"] else took  # noqa: E731
    launch = gpu.launch

    def watched(us, effect, **options):
        launch(us, effect, **options)
        if options.get("name") != "spin_kernel(long)":
            last.append(options.get("name", "")[:4])

    gpu.launch = watched
    timing = measured(calls(gpu, 9.0, us=in_cache), COLD)["timing"]
    assert (timing["timer"], timing["cache"]) == ("cupti", "cold")
    assert timing["median_us"] == pytest.approx(9.0)
    assert timing["hot_median_us"] == pytest.approx(2.0)


@pytest.mark.parametrize(("kind", "what"), [(1, "copy"), (2, "fill")])
def test_copies_and_fills_are_part_of_a_call(gpu, install, measured, kind, what):
    install()
    call = calls(gpu, 5.0)
    run = call.run

    def with_memory(inputs, out):
        gpu.launch(3.0, lambda: None, name=what, kind=kind)
        return run(inputs, out)

    call.run = with_memory
    assert measured(call)["timing"]["median_us"] == pytest.approx(8.0)


def falls_back(record):
    assert record["status"] == "ok"
    assert record["timing"]["timer"] == "graph"
    assert record["timing"]["median_us"] == pytest.approx(5.0)
    assert list(record["extra"]["cross_check_us"]) == ["graph", "back_to_back"]
    return record["reason"]


@pytest.mark.parametrize(
    ("version", "library", "why"),
    [
        ("12.8.0", None, "cupti-python 12.8.0 is too old: needs 13 or newer"),
        ("14.1.0", None, "cupti-python 14.1.0 does not match torch's CUDA 13.0"),
        ("13.4.0", "13.0.85", "cupti-python 13.4.0 is newer than nvidia-cuda-cupti 13.0.85"),
        (None, None, "nobody knows the version of the module cupti: it was not installed as cupti-python"),
    ],
)
def test_one_that_does_not_match_is_not_used_and_the_reason_says_so(
    gpu, install, measured, version, library, why
):
    install(version, library)
    reason = falls_back(measured(calls(gpu, 5.0)))
    assert reason == f"timer cupti cannot be used ({why}): measured by graph"


def test_one_that_is_not_there_is_not_used(gpu, measured, monkeypatch):
    monkeypatch.setattr(kernel_trace.importlib.util, "find_spec", lambda name: None)
    reason = falls_back(measured(calls(gpu, 5.0)))
    assert reason == "timer cupti cannot be used (cupti-python is not installed): measured by graph"


def test_one_that_is_switched_off_is_not_used(gpu, install, measured, monkeypatch):
    install()
    monkeypatch.setenv("FARBENCH_CUPTI", "0")
    assert "(FARBENCH_CUPTI=0 switches CUPTI off)" in falls_back(measured(calls(gpu, 5.0)))


def test_one_that_another_profiler_holds_is_not_used(gpu, install, measured):
    install().other_subscriber = True
    reason = falls_back(measured(calls(gpu, 5.0)))
    assert "CUPTI does not work here: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED" in reason


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (lambda *kernel: None, "CUPTI recorded 0 kernels where one ran"),
        ("in wrong units", "CUPTI says 75000 µs of a kernel that spins for 50 µs"),
    ],
)
def test_records_that_cannot_be_true_are_not_believed(gpu, install, measured, record, why):
    cupti = install()
    gpu.record = (
        record
        if callable(record)
        else lambda kind, name, start, end, n: cupti.record(kind, name, start * 1000, end * 1000, n)
    )
    assert why in falls_back(measured(calls(gpu, 5.0)))


def test_calls_whose_kernels_are_not_seen_are_timed_by_the_graph(gpu, install, measured):
    cupti = install()
    gpu.record = lambda kind, name, *rest: name != "part0" and cupti.record(kind, name, *rest)
    assert "CUPTI recorded no kernel of a call" in falls_back(measured(calls(gpu, 5.0)))


def test_lost_records_never_make_a_time(gpu, install):
    cupti = install()
    tracer = kernel_trace.tracer()
    work = lambda: gpu.launch(5.0, lambda: None)  # noqa: E731
    assert tracer.spans(work, 4, 1.0) == [pytest.approx((5.0, 5.0))] * 4
    seen = iter(range(1000))
    gpu.record = lambda *kernel: next(seen) % 7 == 3 or cupti.record(*kernel)
    with pytest.raises(RuntimeError, match="CUPTI lost records"):
        tracer.spans(work, 4, 1.0)


def test_a_graph_is_held_against_cupti_where_it_is_there(gpu, install, measured):
    install()
    record = measured(calls(gpu, 10.0), {**HOT, "timer": "auto"})
    assert (record["timing"]["timer"], record["verdict"], record["reason"]) == ("graph", "valid", None)
    assert record["extra"]["cross_check_us"] == {
        "graph": pytest.approx(10.0),
        "cupti": pytest.approx(10.0),
        "cupti_busy": pytest.approx(10.0),
    }
    lying = calls(gpu, 10.0, us=lambda took: took if gpu.capturing is None else took / 2)
    record = measured(lying, {**COLD, "timer": "graph"})
    assert record["timing"]["median_us"] == pytest.approx(5.0)
    assert record["extra"]["cross_check_us"]["cupti"] == pytest.approx(10.0)
    assert (record["verdict"], record["reasons"]) == ("suspect", ["timers_disagree"])


def chain(gpu, kernels, in_graph_us, gap_us):
    """A call of several kernels, which the host launches `gap_us` apart, and a graph back to back."""
    call = calls(gpu, *[10.0] * kernels, us=lambda took: took if gpu.capturing is None else in_graph_us)
    run = call.run

    def with_gaps(inputs, out):
        launch = gpu.launch

        def later(us, effect, **options):
            if gpu.capturing is None:
                gpu.clock_us += gap_us
            launch(us, effect, **options)

        gpu.launch = later
        try:
            return run(inputs, out)
        finally:
            gpu.launch = launch

    call.run = with_gaps
    return call


@pytest.mark.parametrize(
    ("in_graph_us", "verdict", "reasons"), [(10.0, "valid", []), (5.0, "suspect", ["timers_disagree"])]
)
def test_gaps_between_launches_that_a_graph_leaves_out_are_no_disagreement(
    gpu, install, measured, in_graph_us, verdict, reasons
):
    install()
    record = measured(chain(gpu, 4, in_graph_us, gap_us=4.0), {**HOT, "timer": "auto"})
    assert record["timing"]["median_us"] == pytest.approx(4 * in_graph_us)
    assert record["extra"]["cross_check_us"] == {
        "graph": pytest.approx(4 * in_graph_us),
        "cupti": pytest.approx(52.0),  # three gaps stand between four kernels
        "cupti_busy": pytest.approx(40.0),
    }
    assert (record["verdict"], record["reasons"]) == (verdict, reasons)


def test_kernels_at_the_same_time_are_busy_once():
    span = kernel_trace._span(
        [
            kernel_trace._Record(n, "k", start, end)
            for n, (start, end) in enumerate([(5000, 9000), (0, 4000), (3000, 6000)])
        ]
    )
    assert span == (9.0, 9.0)
    apart = kernel_trace._span(
        [kernel_trace._Record(1, "k", 0, 1000), kernel_trace._Record(2, "k", 4000, 6000)]
    )
    assert apart == (6.0, 3.0)


@pytest.mark.parametrize("timer", ["cupti", "events"])
def test_single_calls_are_enough_once_they_cost_the_device_the_time_that_was_asked_for(
    gpu, install, measured, timer
):
    """A 5 µs call needs an eviction and a blocking kernel of hundreds around it: those count."""
    install()
    record = measured(calls(gpu, 5.0), {**COLD, "timer": timer, "min_time_ms": 50})
    assert record["timing"]["timer"] == timer
    before = gpu.clock_us
    assert 50 <= record["timing"]["samples"] <= 500
    assert before < 150_000, "150 ms of the device"
