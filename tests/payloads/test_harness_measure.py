"""One case from beginning to end: statuses, phases, what may stand beside what, and the order of the rounds."""

import math
from pathlib import Path
from random import Random

import numpy as np
import pytest
from harness import (
    Call,
    Device,
    Library,
    Needs,
    Payload,
    Reported,
    Unsupported,
    rounds,
    stats,
    timers,
    verdicts,
)
from harness.trial import Settings
from payload_helpers import make_item, payload_of

CPU = Device()


def doubling(inputs, out):
    return np.multiply(inputs, 2, out=out)


def good_call(run=doubling, **more):
    x = np.arange(1, 4097, dtype=np.float32)
    known = {
        "run": run,
        "inputs": x,
        "make_out": lambda: np.empty_like(x),
        "reference": lambda: x * 2,
        "on_cpu": True,
    }
    return Call(**{**known, **more})


def raising(error):
    def build(problem):
        raise error

    return build


def test_a_correct_backend_is_ok_with_times_and_accuracy(measure):
    payload = payload_of(
        right=lambda p: good_call(flops=4096.0, bytes_moved=32768.0, extra={"made_by": "us"})
    )
    recorder = measure(payload, make_item({}, ["right"]), CPU)
    record = recorder.records["right"]
    assert record["status"] == "ok"
    assert record["verdict"] in ("valid", "suspect")
    timing = record["timing"]
    assert timing["timer"] == "host"
    assert timing["cache"] == "hot"
    assert 0 < timing["p20_us"] <= timing["median_us"] <= timing["p80_us"]
    assert timing["samples"] >= len(record["samples_us"]) >= 3
    assert timing["host_us"] == timing["median_us"]
    assert record["metrics"]["gbps"] == pytest.approx(32768 / timing["median_us"] / 1e3)
    assert record["metrics"]["tflops"] == pytest.approx(4096 / timing["median_us"] / 1e6)
    assert record["accuracy"]["cosine"] == 1.0
    assert record["accuracy"]["rel_error"] == 0.0
    assert record["extra"]["made_by"] == "us"
    assert [phase for _, phase in recorder.phases][:3] == ["prepare", "compile", "check"]
    assert {phase for _, phase in recorder.phases[3:]} == {"measure"}
    assert recorder.healthy


def test_cold_on_a_cpu_rotates_more_inputs_than_the_cache_holds(measure):
    seen = set()

    def run(inputs, out):
        seen.add(inputs.ctypes.data)
        return doubling(inputs, out)

    x = np.ones(1 << 21, np.float32)
    call = good_call(run, inputs=x, make_out=lambda: np.empty_like(x), reference=lambda: x * 2)
    item = make_item({}, ["right"], measure={"cache": "cold", "min_time_ms": 30, "max_time_ms": 300})
    record = measure(payload_of(right=lambda p: call), item, CPU).records["right"]
    assert record["timing"]["cache"] == "cold"
    assert record["timing"]["hot_median_us"] > 0
    # … and one call is made with a copy whose numbers are zero.
    assert 2 < len(seen) <= record["extra"]["input_sets"] + 1


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (lambda x, out: out, "4096 of 4096 output elements are NaN"),
        (lambda x, out: np.multiply(x[::-1], 2, out=out), "cosine"),
        (lambda x, out: np.multiply(x, 4, out=out), "wrong scale"),
    ],
)
def test_a_wrong_output_is_incorrect_and_carries_no_time(measure, run, words):
    record = measure(payload_of(wrong=lambda p: good_call(run)), make_item({}, ["wrong"]), CPU).records[
        "wrong"
    ]
    assert record["status"] == "incorrect"
    assert words in record["reason"]
    assert (record["verdict"], record["timing"], record["samples_us"]) == (None, None, None)


def test_one_element_left_out_is_incorrect(measure):
    def run(x, out):
        doubling(x, out)
        out[4000] = 0
        return out

    record = measure(payload_of(wrong=lambda p: good_call(run)), make_item({}, ["wrong"]), CPU).records[
        "wrong"
    ]
    assert record["status"] == "incorrect"
    assert record["accuracy"]["cosine"] > 0.999


class OutOfMemoryError(RuntimeError):
    pass


class BackendSupportedError(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (Unsupported("only on Tuesdays"), "unsupported", "only on Tuesdays"),
        (NotImplementedError("no bf16 here"), "unsupported", "no bf16 here"),
        (BackendSupportedError("needs sm_100"), "unsupported", "needs sm_100"),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling"),
            "unsupported",
            "CUBLAS_STATUS_NOT_SUPPORTED",
        ),
        (ImportError("libx.so: undefined symbol: _ZN3c104impl"), "unsupported", "ABI mismatch"),
        (ImportError("libcudart.so.12: cannot open shared object file"), "unsupported", "libcudart.so.12"),
        (MemoryError("cannot allocate 4 GiB"), "oom", "cannot allocate 4 GiB"),
        (OutOfMemoryError("CUDA out of memory. Tried to allocate"), "oom", "out of memory"),
        (
            RuntimeError("scale_a must be padded and swizzled"),
            "error",
            "RuntimeError: scale_a must be padded",
        ),
        (KeyError("x"), "error", "KeyError: 'x'"),
    ],
)
def test_an_exception_becomes_a_status_and_the_other_backends_go_on(measure, error, status, words):
    payload = payload_of(bad=raising(error), right=lambda p: good_call())
    recorder = measure(payload, make_item({}, ["bad", "right"]), CPU)
    assert recorder.records["bad"]["status"] == status
    assert words in recorder.records["bad"]["reason"]
    assert recorder.records["bad"]["timing"] is None
    assert recorder.records["right"]["status"] == "ok"
    assert recorder.healthy


def test_an_abi_mismatch_names_the_installed_versions(measure):
    payload = Payload("test", prepare=lambda params, device: params)
    payload.backend("bad", Needs(libraries=(Library("numpy"),)))(
        raising(ImportError("x.so: undefined symbol: _Zfoo"))
    )
    reason = measure(payload, make_item({}, ["bad"]), CPU).records["bad"]["reason"]
    assert (
        reason
        == f"ABI mismatch: numpy {np.__version__} (undefined symbol _Zfoo): not built for the torch that is installed"
    )


def test_a_failure_in_the_rounds_ends_that_backend_alone(measure):
    calls = iter(range(10**9))

    def run(x, out):
        if next(calls) > 40:
            raise RuntimeError("broke later")
        return doubling(x, out)

    payload = payload_of(bad=lambda p: good_call(run), right=lambda p: good_call())
    records = measure(payload, make_item({}, ["bad", "right"]), CPU).records
    assert records["bad"]["status"] == "error"
    assert "broke later" in records["bad"]["reason"]
    assert records["right"]["status"] == "ok"


def test_a_payload_that_cannot_prepare_fails_every_backend(measure):
    payload = Payload("test", prepare=lambda params, device: params["absent"])
    payload.backend("a")(lambda p: good_call())
    payload.backend("b")(lambda p: good_call())
    records = measure(payload, make_item({}, ["a", "b"]), CPU).records
    assert {name: record["status"] for name, record in records.items()} == {"a": "error", "b": "error"}


def test_backends_that_are_done_are_left_out_and_unknown_ones_are_errors(measure):
    payload = payload_of(a=lambda p: good_call(), b=lambda p: good_call())
    records = measure(payload, make_item({}, ["a", "b", "c"], done=["a"]), CPU).records
    assert {name: record["status"] for name, record in records.items()} == {"b": "ok", "c": "error"}
    assert "test has no backend 'c'; it has a, b" in records["c"]["reason"]


class DeadDevice(Device):
    def alive(self):
        return False


def test_a_device_that_died_ends_the_case_and_leaves_the_rest_to_another_process(measure):
    payload = payload_of(bad=raising(RuntimeError("an illegal memory access")), right=lambda p: good_call())
    recorder = measure(payload, make_item({}, ["bad", "right"]), DeadDevice())
    assert not recorder.healthy
    assert recorder.records["bad"]["status"] == "crashed"
    assert "right" not in recorder.records


def test_samples_taken_before_the_device_died_stand(measure):
    calls = iter(range(10**9))

    def run(x, out):
        if next(calls) > 20000:  # in one of its turns
            raise RuntimeError("an illegal memory access")
        return doubling(x, out)

    slow = {"cache": "hot", "min_time_ms": 3000, "max_time_ms": 9000, "rounds": 100}
    payload = payload_of(right=lambda p: good_call(), bad=lambda p: good_call(run))
    recorder = measure(payload, make_item({}, ["right", "bad"], measure=slow), DeadDevice())
    assert not recorder.healthy
    assert recorder.records["bad"]["status"] == "crashed"
    assert recorder.records["right"]["status"] == "ok"


def test_what_a_backend_reports_by_itself_is_saved_even_when_json_cannot_say_it(measure):
    def build(problem):
        metrics = {
            "a": math.nan,
            "b": math.inf,
            "c": np.float32(1),
            "d": Path("/x"),
            "big": np.int64(7),
            "n": np.array(2.5),
        }
        return Reported(
            samples_us=(1.0, 2.0, 3.0), metrics=metrics, extra={"e": {1: {np.float64(-math.inf)}}}
        )

    record = measure(payload_of(own=build), make_item({}, ["own"]), CPU).records["own"]
    assert record["status"] == "ok"
    assert record["metrics"] == {"a": None, "b": None, "c": 1.0, "big": 7, "n": 2.5}
    assert record["extra"] == {"d": "/x", "e": {"1": [None]}}
    assert record["reason"] == "metrics.a is NaN; metrics.b is infinite; extra.e.1[0] is infinite"
    assert record["timing"]["median_us"] == 2.0
    assert record["samples_us"] == [1.0, 2.0, 3.0]
    assert record["reasons"] == ["few_samples"]
    assert record["verdict"] == "suspect"


def test_a_time_that_is_not_finite_is_an_error(measure):
    payload = payload_of(own=lambda p: Reported(samples_us=(1.0, math.nan)))
    record = measure(payload, make_item({}, ["own"]), CPU).records["own"]
    assert (record["status"], record["verdict"], record["timing"]) == ("error", None, None)
    assert "samples_us[1] is NaN" in record["reason"]


@pytest.mark.parametrize("own", [16, 0.5])
def test_a_payloads_own_ranks_are_a_metric_and_no_devices(measure, own):
    payload = payload_of(
        call=lambda p: good_call(extra={"ranks": own, "adapter": "lora"}),
        reported=lambda p: Reported(samples_us=(1.0, 2.0), extra={"ranks": own, "adapter": "lora"}),
    )
    records = measure(payload, make_item({}, ["call", "reported"]), CPU).records
    for record in records.values():
        assert (record["status"], record["metrics"]["ranks"]) == ("ok", own)
        assert (record["extra"]["adapter"], record["extra"].get("ranks")) == ("lora", None)


class Scripted(timers.Timer):
    name = "scripted"

    def __init__(self, samples):
        self.samples = samples
        self.turns = 0

    def take(self, budget_ms):
        self.turns += 1
        return list(self.samples)


def run_rounds(settings, **scripts):
    order, ended = [], []
    contenders = [rounds.Contender(name, Scripted(samples)) for name, samples in scripts.items()]
    rounds.run(
        contenders,
        settings,
        announce=lambda c: order.append(c.name),
        finished=lambda c: ended.append(c.name),
        failed=lambda c, error: True,
    )
    return order, ended, contenders


def test_rounds_interleave_and_turn_around():
    settings = Settings(min_time_ms=0.001, max_time_ms=1e6, rounds=3)
    order, ended, _ = run_rounds(settings, a=[10.0] * 10, b=[20.0] * 10, c=[30.0] * 10)
    assert "".join(order) == "abc" + "cba" + "abc"
    assert sorted(ended) == ["a", "b", "c"]


def test_a_backend_goes_on_until_its_interval_is_narrow_and_the_others_are_reported_before():
    settings = Settings(min_time_ms=0.001, max_time_ms=1e6, rounds=2, target_rel_error=0.005)
    noisy = [100.0 + 0.5 * i for i in range(-10, 11)]
    order, ended, contenders = run_rounds(settings, noisy=noisy, calm=[10.0] * 10)
    assert ended[0] == "calm"
    assert order.count("calm") == 2 < order.count("noisy")
    assert stats.relative_error(contenders[0].samples) <= 0.005


def test_the_longest_time_ends_a_hopeless_backend():
    settings = Settings(min_time_ms=0.001, max_time_ms=0.0, rounds=3)
    order, ended, _ = run_rounds(settings, a=[1.0, 2.0])
    assert (order, ended) == (["a"], ["a"])


def test_minimum_time_is_the_total_over_the_rounds():
    settings = Settings(min_time_ms=1.0, max_time_ms=1e6, rounds=2, target_rel_error=1.0)
    order, _, _ = run_rounds(settings, a=[100.0] * 3)  # 0.3 ms a turn
    assert len(order) == 4


@pytest.mark.parametrize(
    ("n", "rank"),
    [
        (6, 1),
        (8, 1),
        (9, 2),
        (10, 2),
        (15, 4),
        (20, 6),
        (25, 8),
        (30, 10),
        (40, 14),
        (50, 18),
        (100, 40),
        (1000, 469),
    ],
)
def test_the_interval_lies_between_the_published_ranks(n, rank):
    samples = Random(0).sample([1000.0 + i for i in range(1, n + 1)], n)  # in no order
    expected = ((1000 + n + 1 - rank) - (1000 + rank)) / 2 / stats.median(samples)
    assert stats.relative_error(samples) == pytest.approx(expected)


def random_walk(random, memory, count=300):
    value, found = 0.0, []
    for _ in range(count):
        value = memory * value + random.gauss(0.0, 1.0)
        found.append(100.0 + value)
    return found


def coverage(memory, runs=300):
    """How often the interval has the true median, 100."""
    random = Random(7)
    hits = 0
    for _ in range(runs):
        samples = random_walk(random, memory)
        # The interval is symmetric in ranks, so this is how far it reaches to either side of the median.
        low = stats._lower_rank(len(samples), stats.inflation(samples, stats.median(samples)))
        ordered = sorted(samples)
        hits += ordered[low - 1] <= 100.0 <= ordered[len(samples) - low]
    return hits / runs


def test_the_interval_has_the_median_as_often_as_it_says():
    assert 0.92 < coverage(0.0) < 0.99


def test_samples_that_hang_together_count_for_fewer():
    assert coverage(0.8) > 0.85
    assert coverage(0.95) > 0.7  # 0.3, were they taken for independent


def test_samples_that_jump_from_turn_to_turn_are_not_taken_for_many():
    turns = [100.0, 101.0, 99.5, 100.4, 99.0, 100.8]
    jumping = [turn + 0.01 * (i % 7) for turn in turns for i in range(40)]
    assert stats.relative_error(jumping) > 0.004
    assert stats.relative_error(Random(3).sample(jumping, len(jumping))) < 0.004


@pytest.mark.parametrize(
    ("samples", "error"),
    [
        ([2.0, 2.5, 2.0, 2.0, 1.5, 2.0, 2.0] * 20, 0.125),  # a clock that ticks every half µs
        ([2.0] * 100, 0.0),
        ([0.0] * 100, None),
        ([-1.0] * 100, None),
    ],
)
def test_no_interval_is_narrower_than_a_tick_of_the_clock(samples, error):
    assert stats.relative_error(samples) == error


def test_five_samples_have_no_interval():
    assert stats.relative_error([1.0] * 5) is None


def test_thinning_keeps_the_order_and_the_ends_evenly():
    kept = stats.thin(list(range(10000)), 2000)
    assert len(kept) == 2000
    assert kept[:3] == [0, 5, 10]
    assert stats.thin([1.0, 2.0], 2000) == [1.0, 2.0]


@pytest.mark.parametrize(
    ("samples", "rel_error", "spread", "disagree", "expected"),
    [
        (100, 0.004, 0.01, False, ("valid", [])),
        (5, None, 0.0, False, ("suspect", ["few_samples"])),
        (100, 0.03, 0.0, False, ("suspect", ["noisy"])),
        (100, 0.30, 0.0, False, ("invalid", ["noisy"])),
        (100, 0.001, 0.2, False, ("suspect", ["noisy"])),
        (100, 0.001, 0.0, True, ("suspect", ["timers_disagree"])),
        (5, None, 0.0, True, ("suspect", ["few_samples", "timers_disagree"])),
    ],
)
def test_the_table_of_verdicts(samples, rel_error, spread, disagree, expected):
    assert verdicts.judge(samples, rel_error, 0.005, spread, disagree) == expected


@pytest.mark.parametrize(
    ("one", "other", "disagree"),
    [(9.0, 10.9, False), (9.0, 11.1, True), (100.0, 114.0, False), (100.0, 116.0, True)],
)
def test_timers_may_differ_by_15_percent_or_two_microseconds(one, other, disagree):
    assert verdicts.timers_disagree(one, other) is disagree
