"""What authors of payloads get wrong without noticing: each ends as a status that says so, and never as a time."""

import json
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from harness import Call, Device, Payload, Reported
from payload_helpers import PAYLOADS, QUICK, make_item, payload_of

CPU = Device()
X = np.arange(1, 4097, dtype=np.float32)


def call_of(run, **more):
    x = X.copy()
    known = {
        "run": run,
        "inputs": x,
        "make_out": lambda: np.empty_like(X),
        "reference": lambda: X * 2,
        "on_cpu": True,
    }
    return Call(**{**known, **more})


@pytest.fixture
def outcome(measure):
    """The record of one backend, and that of a right one measured beside it."""

    def of(build, **more):
        payload = payload_of(a=build, right=lambda p: call_of(lambda x, out: np.multiply(x, 2, out=out)))
        records = measure(payload, make_item({}, ["a", "right"], **more), CPU).records
        assert records["right"]["status"] == "ok"
        return records["a"]

    return of


def is_wrong(record, words):
    assert (record["status"], record["timing"], record["verdict"]) == ("incorrect", None, None)
    assert words in record["reason"]
    return True


def remembering(key):
    known = {}

    def run(x, out):
        if key(x, out) not in known:
            known[key(x, out)] = np.multiply(x, 2)
        return known[key(x, out)]

    return run


@pytest.mark.parametrize(
    "key",
    [lambda x, out: id(x), lambda x, out: x.ctypes.data, lambda x, out: 0],
    ids=["object", "address", "any"],
)
def test_results_that_are_kept_from_an_earlier_call(outcome, key):
    assert is_wrong(outcome(lambda p: call_of(remembering(key))), "4096 of 4096 output elements are NaN")


def test_results_that_are_kept_and_copied_to_the_output(outcome):
    kept = remembering(lambda x, out: x.ctypes.data)

    def run(x, out):
        np.copyto(out, kept(x, out))
        return out

    assert is_wrong(outcome(lambda p: call_of(run)), "or kept of an earlier call")


def test_results_that_are_kept_once_their_inputs_were_seen_often(outcome):
    seen = {}

    def run(x, out):
        count, result = seen.get(x.ctypes.data, (0, None))
        if count < 5:
            result = x * 2
        seen[x.ctypes.data] = count + 1, result
        np.copyto(out, result)
        return out

    assert is_wrong(
        outcome(lambda p: call_of(run)),
        "after it was timed, the call does not read the inputs that it is handed",
    )


def test_a_second_call_that_leaves_early(outcome):
    seen = set()

    def run(x, out):
        if x.ctypes.data in seen:
            return out
        seen.add(x.ctypes.data)
        return np.multiply(x, 2, out=out)

    assert is_wrong(outcome(lambda p: call_of(run)), "NaN")


def test_arrays_that_the_function_closed_over(outcome):
    mine = X.copy()
    record = outcome(lambda p: call_of(lambda x, out: np.multiply(mine, 2, out=out)))
    assert is_wrong(record, "does not read the inputs that it is handed")


def test_inputs_that_are_changed(outcome):
    def run(x, out):
        np.multiply(x, 2, out=out)
        x *= 1.0001
        return out

    assert is_wrong(outcome(lambda p: call_of(run)), "changes its inputs")


def test_inputs_that_the_second_call_changes(outcome):
    calls = iter(range(10**9))

    def run(x, out):
        np.multiply(x, 2, out=out)
        if next(calls) == 1:
            x[7] = -0.0
        return out

    assert is_wrong(outcome(lambda p: call_of(run)), "changes its inputs")


def test_an_output_in_the_memory_of_the_inputs(outcome):
    assert is_wrong(
        outcome(lambda p: call_of(lambda x, out: x[::2], reference=lambda: X[::2])), "memory of the inputs"
    )


def test_an_output_that_goes_wrong_while_it_is_timed(outcome):
    calls = iter(range(10**9))

    def run(x, out):
        return np.multiply(x, 2 if next(calls) < 30 else 3, out=out)

    assert is_wrong(outcome(lambda p: call_of(run)), "after it was timed, the call computes something else: ")


def test_work_that_a_thread_does_later(outcome):
    threads = []

    def later(x, out):
        time.sleep(0.05)
        np.multiply(x, 2, out=out)

    def run(x, out):
        threads.append(threading.Thread(target=later, args=(x, out)))
        threads[-1].start()
        return out

    def slow_reference():
        for thread in threads:
            thread.join()
        return X * 2

    assert is_wrong(outcome(lambda p: call_of(run, reference=slow_reference)), "NaN")


def test_an_output_that_is_not_returned(outcome):
    def run(x, out):
        np.multiply(x, 2, out=out)

    assert is_wrong(outcome(lambda p: call_of(run)), "must return its output")


def test_part_of_an_output_of_booleans_is_not_written(outcome):
    def run(x, out):
        np.greater(x[:2048], 0, out=out[:2048])
        return out

    record = outcome(lambda p: call_of(run, make_out=lambda: np.empty(4096, bool), reference=lambda: X > 0))
    assert record["status"] == "incorrect"


@pytest.mark.parametrize("library", [np, torch])
def test_the_imaginary_part_counts(outcome, library):
    signal = library.ones(256, dtype=library.float64)
    signal[3] = 5

    def wrong(x, out):
        return library.fft.fft(x).conj()

    def right(x, out):
        return library.fft.fft(x)

    expected = np.fft.fft(np.asarray(signal))

    def spectrum(run):
        return lambda p: call_of(run, inputs=signal, make_out=None, reference=lambda: expected)

    assert outcome(spectrum(right))["accuracy"]["cosine"] == pytest.approx(1.0)
    assert is_wrong(outcome(spectrum(wrong)), "cosine")


@pytest.mark.parametrize("scale", [1e200, 1e-200, 1e300, 1.0])
def test_numbers_whose_squares_float64_cannot_hold(outcome, scale):
    x = X.astype(np.float64) * scale / 4096

    def doubling(factor):
        return lambda p: call_of(
            lambda x, out: np.multiply(x, factor, out=out),
            inputs=x,
            make_out=lambda: np.empty_like(x),
            reference=lambda: x * 2,
        )

    assert outcome(doubling(2))["accuracy"]["rel_error"] == 0.0
    assert is_wrong(outcome(doubling(2.001)), "wrong scale")
    assert (
        outcome(
            lambda p: call_of(lambda x, out: x[::-1] * 2, inputs=x, reference=lambda: x * 2, make_out=None)
        )["status"]
        == "incorrect"
    )


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.int16])
def test_whole_numbers_are_exact(outcome, dtype):
    x = np.arange(1, 4097, dtype=dtype)
    build = {"inputs": x, "make_out": lambda: np.empty_like(x), "reference": lambda: x}
    assert outcome(lambda p: call_of(lambda x, out: np.add(x, 0, out=out), **build))["status"] == "ok"
    wrong = "scale" if dtype is np.int16 else "it must equal the reference, and differs by up to 40 "
    assert is_wrong(outcome(lambda p: call_of(lambda x, out: np.add(x, x // 100, out=out), **build)), wrong)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32])
def test_one_index_beside_the_right_one_is_wrong(outcome, dtype):
    """Beside large indices an error of one is small."""
    x = np.arange(1000000, 1004096, dtype=dtype)

    def run(x, out):
        np.copyto(out, x)
        out[7] += 1
        return out

    build = {"inputs": x, "make_out": lambda: np.empty_like(x), "reference": lambda: x}
    assert is_wrong(
        outcome(lambda p: call_of(run, **build)), "it must equal the reference, and differs by up to 1 "
    )
    asked = outcome(lambda p: call_of(run, **build), accuracy={"max_rel_error": 0.001})
    assert asked["status"] == "ok"


def test_outputs_that_nobody_compares_are_told(outcome):
    def run(x, out):
        return np.multiply(x, 2, out=out), np.full(8, np.nan)

    record = outcome(lambda p: call_of(run))
    assert record["status"] == "ok"
    assert "only the first of 2 output arrays was compared with the reference" in record["reason"]
    joined = outcome(lambda p: call_of(run, value=lambda output: output[0] + output[1][0]))
    assert is_wrong(joined, "NaN")


def test_a_reference_of_zeros_is_told(outcome):
    zeros = {"inputs": X * 0, "reference": lambda: X * 0}
    record = outcome(lambda p: call_of(lambda x, out: np.multiply(x, 2, out=out), **zeros))
    assert record["status"] == "ok"
    assert "the reference is zero everywhere" in record["reason"]


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        (lambda: [2.0, 4.0], "the reference is list: it must be an array or a tensor"),
        (lambda: None, "the reference is NoneType"),
        (lambda: X * np.nan, "the reference itself is not finite"),
        (lambda: X[:5], "is not the reference's"),
        (lambda: X * 2j, "of complex numbers both must be"),
    ],
)
def test_references_that_cannot_be_compared_with(outcome, reference, words):
    record = outcome(lambda p: call_of(lambda x, out: np.multiply(x, 2, out=out), reference=reference))
    assert (record["status"], record["timing"]) == ("error", None)
    assert words in record["reason"]


def leaving(*_):
    raise SystemExit(0)


@pytest.mark.parametrize(
    "build",
    [
        leaving,
        lambda p: call_of(leaving),
        lambda p: call_of(lambda x, out: np.multiply(x, 2, out=out), reference=leaving),
        lambda p: call_of(lambda x, out: np.multiply(x, 2, out=out), metrics=leaving),
        lambda p: call_of(lambda x, out: np.multiply(x, 2, out=out), tune=leaving),
    ],
    ids=["build", "run", "reference", "metrics", "tune"],
)
def test_who_ends_the_process_ends_only_itself(outcome, build):
    record = outcome(build)
    assert (record["status"], record["reason"]) == ("error", "RuntimeError: it called sys.exit(0)")


def test_a_payload_that_ends_the_process_while_it_prepares(measure):
    payload = Payload("test", prepare=leaving)
    payload.backend("a")(lambda p: call_of(leaving))
    assert "sys.exit(0)" in measure(payload, make_item({}, ["a"]), CPU).records["a"]["reason"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"metrics": lambda us: {"rate": 1 / 0}}, "ZeroDivisionError"),
        ({"metrics": lambda us: 5}, "TypeError: Call.metrics gave int: it must give a dict"),
        ({"describe": lambda: None}, "TypeError: Call.describe gave NoneType: it must give a dict"),
        ({"inspect": lambda out: None}, "TypeError: Call.inspect gave NoneType: it must give (an objection"),
        ({"flops": "many"}, "TypeError: Call.flops is 'many': it must be a number"),
        ({"flops": -5}, "ValueError: Call.flops is -5: it must be finite, and not below zero"),
        ({"bytes_moved": float("nan")}, "ValueError: Call.bytes_moved is nan"),
        ({"bytes_moved": 10**400}, "ValueError: Call.bytes_moved is inf"),
    ],
)
def test_figures_that_cannot_be_computed(outcome, more, words):
    record = outcome(lambda p: call_of(lambda x, out: np.multiply(x, 2, out=out), **more))
    assert (record["status"], record["timing"]) == ("error", None)
    assert words in record["reason"]


def test_weights_in_a_record_do_not_cost_the_measurement(outcome):
    record = outcome(
        lambda p: call_of(
            lambda x, out: np.multiply(x, 2, out=out), extra={"w": np.zeros(10**6), "tactic": 3}
        )
    )
    assert (record["status"], record["reason"]) == ("ok", "extra.w is left out: a ndarray of 1000000 values")
    assert (record["extra"]["w"], record["extra"]["tactic"]) == ("ndarray of 1000000 values", 3)


def test_a_backend_that_gives_no_call(outcome):
    assert outcome(lambda p: None)["reason"] == "TypeError: the backend gave NoneType, no Call"


@pytest.mark.parametrize(
    ("name", "value"), [("reference", X * 2), ("make_out", X.copy()), ("value", 5), ("restore", "x")]
)
def test_a_value_in_place_of_a_function_is_named(outcome, name, value):
    record = outcome(lambda p: call_of(lambda x, out: np.multiply(x, 2, out=out), **{name: value}))
    kind = type(value).__name__
    expected = f"TypeError: Call.{name} is {kind}: it must be a function that gives it"
    assert (record["status"], record["reason"]) == ("error", expected)


def test_a_call_without_a_reference_is_named(outcome):
    record = outcome(lambda p: call_of(lambda x, out: np.multiply(x, 2, out=out), reference=None))
    assert record["reason"] == "TypeError: Call.reference is missing"


@pytest.mark.parametrize("bad", [0, -1.0, "3", None, True, -np.inf, b"1"])
def test_times_of_its_own_that_are_none(outcome, bad):
    record = outcome(lambda p: Reported(samples_us=(1.0, bad, *[2.0] * 20)))
    assert (record["status"], record["timing"]) == ("error", None)
    assert "samples_us[1] is " in record["reason"]


@pytest.mark.parametrize("bad", [5.0, np.float32(5)])
def test_times_of_its_own_that_are_no_list(outcome, bad):
    record = outcome(lambda p: Reported(samples_us=bad))
    assert record["status"] == "error"
    assert record["reason"].endswith("it must be a list of times")


def test_times_of_its_own_in_rows_are_refused_by_name(outcome):
    reason = outcome(lambda p: Reported(samples_us=np.ones((2, 3))))["reason"]
    assert reason == "ValueError: samples_us[0] is [1.0, 1.0, 1.0]: a time is a number above zero"


@pytest.mark.parametrize("name", ["cosine", "rel_error"])
def test_its_own_accuracy_that_is_no_number(outcome, name):
    def build(value):
        return lambda p: Reported(samples_us=[1.0] * 20, accuracy={name: value})

    assert is_wrong(outcome(build(float("nan"))), "that it reports is nan: its output cannot be right")
    record = outcome(build("good"))
    assert (record["status"], record["reason"]) == (
        "error", f"ValueError: accuracy.{name} is 'good': it must be a number"
    )  # fmt: skip


def test_its_own_accuracy_is_held_against_what_the_sweep_asks(outcome):
    def build(p):
        return Reported(samples_us=[1.0] * 20, accuracy={"cosine": 0.5, "rel_error": 0.2})

    assert outcome(build)["status"] == "ok"
    assert is_wrong(outcome(build, accuracy={"min_cosine": 0.99}), "cosine 0.500000 is below 0.99")
    assert is_wrong(outcome(build, accuracy={"max_rel_error": 0.1}), "relative error 0.2 is above 0.1")


def test_settings_of_the_process_hold_for_the_backend_that_made_them(measure, tmp_path):
    place = os.getcwd()
    threads = torch.get_num_threads()
    seen = {"a": set(), "b": set(), "reference": set()}

    def settings():
        return (
            torch.get_default_dtype(),
            torch.get_num_threads(),
            torch.backends.cuda.matmul.allow_tf32,
            os.getcwd(),
        )

    def named(name):
        def run(x, out):
            seen[name].add(settings())
            return np.multiply(x, 2, out=out)

        def reference():
            seen["reference"].add(settings())
            return X * 2

        return call_of(run, reference=reference)

    def changing(p):
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(threads + 3)
        torch.backends.cuda.matmul.allow_tf32 = True
        os.chdir(tmp_path)
        return named("a")

    item = make_item({}, ["a", "b"], measure={**QUICK, "rounds": 4})
    records = measure(payload_of(a=changing, b=lambda p: named("b")), item, CPU).records
    assert {record["status"] for record in records.values()} == {"ok"}
    assert seen["a"] == {(torch.float64, threads + 3, True, str(tmp_path))}
    assert seen["b"] == seen["reference"] == {(torch.float32, threads, False, place)}
    assert settings() == (torch.float32, threads, False, place)
    assert records["a"]["extra"]["settings_of_its_own"]["torch default dtype"] == "torch.float64"
    assert "settings_of_its_own" not in records["b"]["extra"]


def test_autocast_that_is_entered_and_never_left_is_one_backends_own(measure):
    x = torch.randn(8, 8)

    def product(p):
        return Call(
            run=lambda x, out: torch.mm(x, x), inputs=x, reference=lambda: x @ x, limits={"min_cosine": 0.99}
        )

    def entering(p):
        torch.autocast("cpu", dtype=torch.bfloat16).__enter__()
        return product(p)

    records = measure(payload_of(a=entering, b=product), make_item({}, ["a", "b"]), CPU).records
    assert records["a"]["accuracy"]["rel_error"] > 1e-4, "it computes in bfloat16"
    assert records["b"]["accuracy"]["rel_error"] < 1e-6
    assert records["a"]["extra"]["settings_of_its_own"]["torch autocast cpu"] == "True"
    assert not torch.is_autocast_enabled("cpu")


def test_settings_are_put_back_when_the_backend_fails(outcome):
    def build(p):
        torch.set_default_dtype(torch.float64)
        raise ValueError("no")

    assert outcome(build)["reason"] == "ValueError: no"
    assert torch.get_default_dtype() == torch.float32


def test_streams_that_a_backend_closes_are_there_for_the_next(script, tmp_path):
    source = (PAYLOADS / "copy.py.j2").read_text(encoding="utf-8")
    for name, what in (("closes", "os.close(1), os.close(2)"), ("prints", "print('x'), os.write(1, b'y')")):
        source = source.replace(
            'if __name__ == "__main__":',
            f"""
@payload.backend("{name}", Needs(device="cpu"))
def {name}(problem):
    import os
    import numpy as np

    x = np.ones(256, np.float32)

    def run(inputs, out):
        try:
            {what}
        except OSError:
            if "{name}" == "prints":
                raise
        return np.multiply(inputs, 2, out=out)

    return Call(
        run=run, inputs=x, make_out=lambda: np.empty_like(x), reference=lambda: x * 2, on_cpu=True
    )


if __name__ == "__main__":""",
        )
    path = script([make_item({"bytes": 1024}, ["closes", "prints"], payload="copy")], "copy", source)
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=120, check=False
    )
    found = {
        record["backend"]: record["reason"] or record["status"]
        for record in map(json.loads, done.stdout.splitlines())
    }
    assert found == {"closes": "ok", "prints": "ok"}
