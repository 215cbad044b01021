"""Whether a call reads what it should is tried on its own arrays, which may be read-only, a file, or of an unusual kind."""

import functools
import subprocess
import sys

import numpy as np
import pytest
import torch
from harness import Call, Device, deprivation, memory, reach
from harness import trial as trials
from payload_helpers import PAYLOADS, make_item, payload_of

CPU = Device()
HOT = {
    "cache": "hot", "timer": "auto", "min_time_ms": 3, "max_time_ms": 100, "target_rel_error": 0.2, "rounds": 3
}  # fmt: skip
COLD = {**HOT, "cache": "cold"}
X = np.random.default_rng(1).random((16, 64))
W = np.random.default_rng(2).random((64, 64))


def one(measure, how, **call):
    return measure(
        payload_of(a=lambda problem: Call(**call)), make_item({}, ["a"], measure=how), CPU
    ).records["a"]


def ends(record, cache):
    assert (record["status"], record["timing"] and record["timing"]["cache"]) == ("ok", cache), record[
        "reason"
    ]
    return record["reason"]


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def in_inference_mode(array):
    with torch.inference_mode():
        return torch.from_numpy(array).clone()


@pytest.fixture
def weights_file(tmp_path):
    np.save(tmp_path / "w.npy", W)
    return tmp_path / "w.npy"


@pytest.mark.parametrize("how", [HOT, COLD], ids=["hot", "cold"])
@pytest.mark.parametrize(
    "made",
    [read_only, lambda array: np.broadcast_to(array[0], array.shape), in_inference_mode],
    ids=["read-only", "broadcast", "inference"],
)
def test_inputs_that_cannot_be_written_to_are_inputs_like_others(measure, made, how):
    x = made(W)
    record = one(measure, how, run=lambda x, out: x @ x.T, inputs=x, reference=lambda: x @ x.T)
    assert ends(record, how["cache"]) is None


@pytest.mark.parametrize("handed", [True, False])
def test_a_users_file_is_never_overwritten_not_even_for_a_moment(measure, weights_file, handed):
    w, seen = np.load(weights_file, mmap_mode="r+"), []
    content = weights_file.read_bytes()

    def run(inputs, out):
        seen.append(weights_file.read_bytes() == content)
        return inputs @ (inputs if handed else w)

    inputs = w if handed else X
    ends(
        one(measure, HOT if handed else COLD, run=run, inputs=inputs, reference=lambda: inputs @ W),
        "hot" if handed else "cold",
    )
    assert all(seen)


MAPPED = """
import sys, warnings
import numpy as np, torch
warnings.simplefilter("ignore")
sys.path[:0] = {paths!r}
from test_borrowed_memory import COLD, CPU, HOT, X, make_item, payload_of
from harness import Call
from harness.measure import CaseRun
from payload_helpers import Recorder
t, x = torch.from_numpy(np.load({file!r}, mmap_mode="r")), torch.from_numpy(X.copy())
for how, inputs in ((HOT, t), (COLD, x)):
    call = Call(run=lambda inputs, out: inputs @ t, inputs=inputs, reference=lambda: inputs @ t)
    found = Recorder()
    CaseRun(payload_of(a=lambda problem: call), make_item({{}}, ["a"], measure=how), CPU, found).run()
    print(found.records["a"]["status"])
"""


def test_a_tensor_over_a_read_only_file_does_not_end_the_process(weights_file):
    paths = [str(PAYLOADS), str(PAYLOADS.parent / "tests" / "payloads")]
    script = MAPPED.format(paths=paths, file=str(weights_file))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.split()) == (0, ["ok", "ok"]), done.stderr


def test_which_memory_may_be_changed(weights_file):
    shared = torch.zeros(1 << 16).share_memory_()
    private, mapped = np.load(weights_file, mmap_mode="c"), np.load(weights_file, mmap_mode="r+")
    own = memory.Own()
    assert own.has([X, torch.zeros(4), np.empty(0), private, in_inference_mode(X)])
    assert not any(map(own.has, (read_only(X), mapped, mapped[3:], torch.from_numpy(mapped), shared)))


def test_memory_that_is_taken():
    buffer = np.zeros(100)
    taken = memory.Spans([buffer[10:20], buffer[20:30], buffer[50:60], np.empty(0)])
    met = [
        taken.meet(buffer[start:end])
        for start, end in ((0, 10), (0, 11), (25, 40), (30, 50), (30, 51), (60, 99), (0, 99))
    ]
    assert met == [False, True, True, False, True, False, True]


class Weights:
    """A user's own: weights, and much else."""

    of_class = None

    def __init__(self, w):
        self.w = w
        self.numbers, self.texts = list(range(5000)), [str(n) for n in range(5000)]

    def __call__(self, x, out):
        return x @ self.w

    def forward(self, x, out):
        return self(x, out)

    def by_class(self, x, out):
        return x @ self.of_class


class Slotted:
    __slots__ = ("__w", "never_set")

    def __init__(self, w):
        self.__w = w

    def forward(self, x, out):
        return x @ self.__w


def by_class(w):
    Weights.of_class = w
    return Weights(None).by_class


def by_inner_function(w):
    globals()["inner_weights"] = w

    def run(x, out):
        def multiply():
            return x @ inner_weights  # noqa: F821

        return multiply()

    return run


@pytest.mark.parametrize(
    "run_of",
    [
        Weights,
        lambda w: Weights(w).forward,
        lambda w: torch.inference_mode()(Weights(w).forward),
        lambda w: torch.no_grad()(functools.partial(Weights.forward, Weights(w))),
        lambda w: Slotted(w).forward,
        by_class,
        by_inner_function,
    ],
    ids=["callable", "much else", "inference mode", "no grad", "slots", "class", "inner function"],
)
def test_weights_are_found_wherever_a_call_has_them(measure, run_of):
    w, x = torch.from_numpy(W.copy()), torch.from_numpy(X.copy())
    record = one(measure, COLD, run=run_of(w), inputs=x, reference=lambda: x @ w)
    assert ends(record, "hot").startswith("not cold: the call reads an array of 64×64 that it is not handed")
    assert np.array_equal(w, W)


@pytest.mark.parametrize("how", [HOT, COLD], ids=["hot", "cold"])
def test_a_call_in_inference_mode_is_a_call_like_others(measure, how):
    x = torch.from_numpy(X.copy())
    record = one(
        measure, how, run=torch.inference_mode()(lambda x, out: x * 2), inputs=x, reference=lambda: x * 2
    )
    assert ends(record, how["cache"]) is None


def test_weights_made_in_inference_mode_are_found_and_hurt_nobody(measure):
    w, x = in_inference_mode(W), torch.from_numpy(X.copy())
    call = {"inputs": x, "reference": lambda: x @ w}
    assert "that it is not handed" in ends(one(measure, COLD, run=lambda x, out: x @ w, **call), "hot")
    other = torch.from_numpy(W.copy())
    record = one(
        measure,
        COLD,
        run=lambda i, out: i[0] @ i[1] if w is not None else w,
        inputs=(x, other),
        reference=lambda: x @ other,
    )
    assert ends(record, "cold") is None


def test_an_output_of_the_calls_own_does_not_stand_in_for_its_weights(measure):
    """It is among the small arrays that are tried together with the weights, and has the right numbers already."""
    layer, x = torch.nn.Linear(64, 1, dtype=torch.float64), torch.from_numpy(X.copy())
    wide = torch.nn.Linear(64, 64, dtype=torch.float64)
    kept = torch.empty(16, 1, dtype=torch.float64)

    def run(x, out):
        with torch.no_grad():
            return kept.copy_(layer(wide(x)))

    record = one(measure, COLD, run=run, inputs=x, reference=lambda: layer(wide(x)).detach())
    assert "that it is not handed" in ends(record, "hot")


class Unwilling:
    """Tells nobody what it is before it was set up, as proxies do."""

    @property
    def __class__(self):
        raise RuntimeError("not set up")


class Unready(torch.nn.Module):
    def parameters(self, recurse=True):
        raise RuntimeError("not set up")


@pytest.mark.parametrize("kind", [Unwilling, Unready])
def test_an_object_that_cannot_be_looked_at_is_none_of_the_calls_arrays(measure, kind):
    other = kind()
    record = one(measure, COLD, run=lambda x, out: (other, x * 2)[1], inputs=X, reference=lambda: X * 2)
    assert ends(record, "cold") is None


def test_weights_of_other_backends_cost_one_call_and_not_one_each(measure):
    others, calls = [W.copy() for _ in range(50)], []

    def run(x, out):
        calls.append(len(others))
        return x * 2

    call = Call(run=run, inputs=X, reference=lambda: X * 2)
    assert len(reach.hidden(call, None)) == 50
    trial = trials.Trial(payload_of(a=run).backends["a"], call, CPU)
    output = trials.compile_call(trial, 0.0)
    assert trials.check(trial, output, {}) is None
    calls.clear()
    assert deprivation.unhanded(trial, X * 2, {}) is None
    assert len(calls) == 1
