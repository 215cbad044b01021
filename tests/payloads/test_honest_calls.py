"""Calls of many honest styles, and of styles that would be timed at other work than they seem."""

import functools

import numpy as np
import pytest
import torch
from harness import Call, Device, Payload, arrays, environment, filling, ring
from payload_helpers import make_item, payload_of

CPU = Device()
N = 4096
COLD = {
    "cache": "cold", "timer": "auto", "min_time_ms": 3, "max_time_ms": 200, "target_rel_error": 0.2, "rounds": 3
}  # fmt: skip


def one(measure, how=None, **call):
    payload = payload_of(a=lambda problem: Call(**call))
    item = make_item({}, ["a"], **({"measure": how} if how else {}))
    return measure(payload, item, CPU).records["a"]


def shuffled():
    return np.random.default_rng(0).permutation(1 << 16).astype(np.float64)


def in_place_sort(seen, **more):
    """Sorts in place: of its second call on the same array, nothing is left to do."""
    original = shuffled()

    def run(inputs, out):
        if inputs.any():  # not those that are zeroed to see whether they are read
            seen.append(bool((np.diff(inputs) >= 0).all()))
        inputs.sort()
        return inputs

    def restore(inputs):
        inputs[:] = original

    return {
        "run": run, "inputs": original.copy(), "reference": lambda: np.sort(original), "restore": restore, **more
    }  # fmt: skip


@pytest.mark.parametrize("how", [COLD, {**COLD, "cache": "hot"}])
def test_a_call_in_place_has_all_of_its_work_to_do_in_every_sample(measure, how):
    seen = []
    record = one(measure, how, **in_place_sort(seen))
    assert record["status"] == "ok"
    assert record["timing"]["cache"] == how["cache"]
    assert not any(seen), "one call found what an earlier one had left"


def test_a_call_that_may_be_repeated_on_what_it_left_is_not_restored_for_each_sample(measure):
    seen = []
    record = one(measure, {**COLD, "cache": "hot"}, **in_place_sort(seen, repeatable=True))
    assert record["status"] == "ok"
    assert any(seen)


def test_an_input_that_is_handed_over_but_read_from_elsewhere_is_found(measure):
    x, w = np.ones(8), np.random.default_rng(1).random((64, 8))
    record = one(
        measure, run=lambda inputs, out: w @ inputs[0], inputs=(x, w), reference=lambda: w @ x
    )  # fmt: skip
    assert record["status"] == "incorrect"
    assert "does not read array 2 of the inputs (64×8) that it is handed" in record["reason"]


def test_a_call_that_moves_more_than_it_was_handed_is_not_called_cold(measure):
    x, w = np.ones(1024), np.random.default_rng(1).integers(0, 9, (1024, 1024))
    record = one(
        measure, COLD, run=lambda inputs, out: w @ inputs, inputs=x, reference=lambda: w @ x, bytes_moved=w.nbytes
    )  # fmt: skip
    assert (record["status"], record["timing"]["cache"]) == ("ok", "hot")
    assert "not cold: the call moves 8.39 MB, but its inputs and output are of 0.0164 MB" in record["reason"]


def test_a_modules_weights_are_not_called_cold(measure):
    layer = torch.nn.Linear(256, 256, bias=False)
    x = torch.randn(4, 256)

    def run(inputs, out):
        with torch.no_grad():
            return inputs[1](inputs[0])

    record = one(measure, COLD, run=run, inputs=(x, layer), reference=lambda: (x @ layer.weight.T).detach())
    assert (record["status"], record["timing"]["cache"]) == ("ok", "hot")
    assert "not cold: weights of a module among the inputs cannot be rotated" in record["reason"]


class Layer:
    """A user's own: weights in an attribute."""

    def __init__(self, w):
        self.w = w

    def forward(self, x, out):
        return np.matmul(x, self.w, out=out)


def applied(layer, x, out):
    return layer.forward(x, out)


def by_closure(w):
    return lambda x, out: np.matmul(x, w, out=out)


def by_default(w):
    return lambda x, out, w=w: np.matmul(x, w, out=out)


def by_helper(w):
    multiply = by_closure(w)
    return lambda x, out: multiply(x, out)


def by_global(w):
    globals()["the_weights"] = w
    return lambda x, out: np.matmul(x, the_weights, out=out)  # noqa: F821


@pytest.mark.parametrize(
    "run_of",
    [
        by_closure,
        by_default,
        by_helper,
        by_global,
        lambda w: Layer(w).forward,
        lambda w: functools.partial(applied, Layer(w)),
        lambda w: by_closure(list(w)),  # rows, each of them small
    ],
    ids=["closure", "default", "helper", "global", "method", "partial", "small ones"],
)
def test_weights_that_are_not_handed_over_are_not_called_cold(measure, run_of):
    x, w = np.random.default_rng(1).random((4, 128)), np.random.default_rng(2).random((128, 128))
    before = w.copy()
    record = one(
        measure, COLD, run=run_of(w), inputs=x, reference=lambda: x @ w, make_out=lambda: np.empty_like(x)
    )
    assert (record["status"], record["timing"]["cache"]) == ("ok", "hot")
    assert "that it is not handed: put that among Call.inputs" in record["reason"]
    assert np.array_equal(w, before)


def test_weights_inside_an_object_among_the_inputs_are_not_called_cold(measure):
    x, w = np.random.default_rng(1).random((4, 128)), np.random.default_rng(2).random((128, 128))
    record = one(
        measure, COLD, run=lambda i, out: i[0] @ i[1].w, inputs=(x, Layer(w)), reference=lambda: x @ w
    )  # fmt: skip
    assert (record["status"], record["timing"]["cache"]) == ("ok", "hot")
    assert "not cold: the call reads an array of 128×128 that it is not handed" in record["reason"]


class Frame:
    """Shows its data as libraries do whose arrays are neither numpy's nor torch's."""

    __module__ = "elsewhere"

    def __init__(self, data):
        self._hidden = (data,)

    def __array__(self, dtype=None, copy=None):
        return self._hidden[0]


@pytest.mark.parametrize("kind", [bytes, bytearray, Frame], ids=["bytes", "bytearray", "a third library's"])
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside an array"])
def test_data_that_is_no_array_is_not_called_cold(measure, kind, beside):
    data = np.random.default_rng(6).random(1 << 16)
    inputs = {"data": kind(data), "x": np.ones(1 << 14) if beside else None}

    def run(inputs, out):
        held = inputs["data"]
        held = np.asarray(held) if kind is Frame else np.frombuffer(held)
        return held * 2 if inputs["x"] is None else held * 2 * inputs["x"][0]

    record = one(measure, COLD, run=run, inputs=inputs, reference=lambda: data * 2)
    assert (record["status"], record["timing"]["cache"]) == ("ok", "hot")
    assert f"not cold: a {kind.__name__} among the inputs cannot be rotated" in record["reason"]


class Sparse:
    __module__ = "elsewhere"

    def __init__(self, data):
        self.data, self.shape = data, data.shape


def test_arrays_of_a_librarys_object_among_the_inputs_are_not_called_cold(measure):
    data = np.random.default_rng(7).random((256, 256))
    record = one(
        measure, COLD, run=lambda inputs, out: inputs[0].data @ inputs[1], inputs=(Sparse(data), np.ones(256)),
        reference=lambda: data @ np.ones(256),
    )  # fmt: skip
    assert record["timing"]["cache"] == "hot"
    assert "not cold: the call reads an array of 256×256 that it is not handed" in record["reason"]


@pytest.mark.parametrize(
    "other", ["text" * 100, 3.5, None, np.float64(2), torch.float32, (1, 2), b"key"], ids=repr
)
def test_what_else_a_call_is_handed_leaves_it_cold(measure, other):
    x = np.random.default_rng(8).random(1 << 16)
    record = one(
        measure, COLD, run=lambda inputs, out: inputs[0] * 2, inputs=(x, other), reference=lambda: x * 2
    )  # fmt: skip
    assert (record["timing"]["cache"], record["reason"]) == ("cold", None)


def test_a_module_that_a_call_closed_over_is_not_called_cold(measure):
    layer = torch.nn.Linear(128, 128)
    x = torch.randn(4, 128)
    before = layer.weight.detach().clone()
    record = one(
        measure, COLD, run=lambda x, out: layer(x).detach(), inputs=x, reference=lambda: layer(x).detach()
    )  # fmt: skip
    assert (record["status"], record["timing"]["cache"]) == ("ok", "hot")
    assert "not cold: the call reads arrays of 0.066 MB that it is not handed" in record["reason"]
    assert torch.equal(layer.weight, before)


def test_what_a_call_could_read_and_does_not_need_leaves_it_cold(measure):
    x, w = np.random.default_rng(1).random((4, 128)), np.random.default_rng(2).random((128, 128))
    masters, scratch, factor = w.copy(), np.empty((4, 128)), np.full(1, 2.0)

    def run(inputs, out):
        if masters.shape != inputs[1].shape:
            raise ValueError("another shape")
        np.matmul(inputs[0], inputs[1], out=scratch)
        return np.multiply(scratch, factor, out=out)

    record = one(
        measure, COLD, run=run, inputs=(x, w), reference=lambda: x @ w * 2, make_out=lambda: np.empty_like(x)
    )
    assert (record["status"], record["timing"]["cache"]) == ("ok", "cold")
    assert record["reason"] is None


def test_a_reference_within_reach_of_the_call_is_not_taken_for_what_it_reads(measure):
    x = torch.randn(64, 64)

    class Own:
        expected = None

    own = Own()
    own.expected, own.half = x * 2, torch.full((64, 64), 0.5)
    empty = torch.nn.LazyLinear(4)  # its weights are not made yet
    record = one(
        measure, COLD, run=lambda x, out: torch.add(x, x) if own and empty else None, inputs=x,
        reference=lambda: own.expected / 2, value=lambda output: output * own.half,
    )  # fmt: skip
    assert (record["status"], record["timing"]["cache"], record["reason"]) == ("ok", "cold", None)


def test_one_set_that_fills_the_cache_by_its_size_alone_is_evicted(measure, monkeypatch):
    """A gather of a few rows from a large table finds them in the cache, however large the table is."""
    monkeypatch.setattr(environment, "last_level_cache_bytes", lambda: 1 << 16)
    evicted = []
    monkeypatch.setattr(environment, "evict_caches", lambda: evicted.append(1))
    table = np.random.default_rng(2).random((1 << 12, 64))
    rows = np.arange(0, 64, dtype=np.int64)
    gather = {
        "run": lambda inputs, out: inputs[0][inputs[1]],
        "inputs": (table, rows),
        "reference": lambda: table[rows],
    }
    record = one(measure, COLD, **gather)
    assert (record["status"], record["timing"]["cache"]) == ("ok", "cold")
    assert record["extra"]["input_sets"] == 1
    assert record["extra"]["evicted_each_pass"] is True
    assert len(evicted) >= record["timing"]["samples"]
    evicted.clear()
    record = one(measure, COLD, **gather, bytes_moved=2.0 * table.nbytes)
    assert "evicted_each_pass" not in record["extra"], "it says itself that it reads all"


@pytest.mark.parametrize(
    "view",
    [
        lambda: torch.arange(4096.0).reshape(64, 64)[:, ::16],
        lambda: torch.arange(64.0)[:, None].expand(64, 32),
        lambda: torch.arange(4096.0).reshape(64, 64)[3:60, 5:50].T,
        lambda: torch.arange(256, dtype=torch.uint8).reshape(16, 16)[:, 4:8],
        lambda: np.arange(4096.0).reshape(64, 64)[:, ::16],
        lambda: np.arange(4096.0)[::-3],
        lambda: np.broadcast_to(np.arange(64.0), (32, 64)),
        lambda: np.arange(4096.0).reshape(16, 16, 16).transpose(2, 0, 1)[:, 2:9],
    ],
)
def test_a_copy_lies_in_memory_as_the_original_does(view):
    original = view()
    copy = arrays.clone(original)
    strides = (lambda x: x.stride()) if torch.is_tensor(original) else (lambda x: x.strides)
    assert strides(copy) == strides(original)
    assert copy.dtype == original.dtype
    assert (copy == original).all()
    assert not arrays.overlap(copy, original)
    assert arrays.same(copy, original)
    filling.zero(copy)
    assert not copy.any()
    filling.refill(copy, original)
    assert (copy == original).all()
    assert arrays.span_bytes(copy) == arrays.span_bytes(original)


def sparse(layout):
    dense = torch.zeros(64, 64)
    dense[::3, ::5] = 2.0
    return dense.to_sparse() if layout == "coo" else dense.to_sparse_csr()


@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
def test_sparse_tensors_are_inputs_like_others(measure, layout):
    matrix, x = sparse(layout), torch.ones(64, 8)
    record = one(
        measure, COLD, run=lambda inputs, out: inputs[0] @ inputs[1], inputs=(matrix, x),
        reference=lambda: matrix.to_dense() @ x,
    )  # fmt: skip
    assert (record["status"], record["accuracy"]["cosine"]) == ("ok", pytest.approx(1))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:.*quantize_per_tensor")
def test_nested_and_quantised_tensors_do_not_end_the_process(measure):
    x = torch.rand(512, 512)
    nested = torch.nested.nested_tensor([x[:200], x[200:500]])
    call = {"inputs": nested, "reference": lambda: x[200:500] * x[:200].sum()}
    record = one(measure, COLD, run=lambda i, out: i.unbind()[1] * i.unbind()[0].sum(), **call)
    assert (record["status"], record["timing"] and record["timing"]["cache"]) == ("ok", "cold"), record[
        "reason"
    ]
    record = one(measure, run=lambda i, out: x[200:500] * i.unbind()[0].sum(), **call)
    assert "does not read array 2 of the inputs (300×512)" in record["reason"]
    codes = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
    record = one(
        measure, COLD, run=lambda i, out: i.dequantize() * 2, inputs=codes, reference=lambda: codes.dequantize() * 2
    )  # fmt: skip
    assert (record["status"], record["accuracy"]["cosine"]) == ("ok", pytest.approx(1))


def test_a_backward_pass_can_be_measured(measure):
    x = torch.arange(1.0, N + 1, requires_grad=True)

    def run(inputs, out):
        inputs.grad = None
        (inputs**2).sum().backward()
        return inputs.grad

    record = one(measure, COLD, run=run, inputs=x, reference=lambda: 2 * x.detach())
    assert (record["status"], record["accuracy"]["cosine"]) == ("ok", pytest.approx(1))


@pytest.mark.parametrize("number", [lambda x: x.sum(), lambda x: float(x.sum())])
def test_an_output_may_be_a_number(measure, number):
    x = np.arange(float(N))
    record = one(measure, COLD, run=lambda inputs, out: number(inputs), inputs=x, reference=lambda: x.sum())
    assert (record["status"], record["accuracy"]["rel_error"]) == ("ok", 0.0)


def test_a_question_whose_answer_is_the_same_for_zeros_is_not_deaf(measure):
    x = torch.randn(N)
    record = one(
        measure, run=lambda inputs, out: torch.isfinite(inputs), inputs=x,
        reference=lambda: torch.ones(N, dtype=torch.bool),
    )  # fmt: skip
    assert record["status"] == "ok"


def test_work_that_is_left_to_value_is_not_timed_as_done(measure):
    x = np.random.default_rng(3).random(N)
    record = one(
        measure, run=lambda inputs, out: lambda: np.sort(inputs), inputs=x, value=lambda later: later(),
        reference=lambda: np.sort(x),
    )  # fmt: skip
    assert record["status"] == "incorrect"
    assert "must return its output, of numpy or torch, once it is computed" in record["reason"]


def test_remembered_answers_are_found_where_inputs_are_whole_numbers_too(measure):
    numbers = np.random.default_rng(4).integers(0, 99, N)
    remembered = {}

    def run(inputs, out):
        key = inputs.ctypes.data
        if key not in remembered:
            remembered[key] = np.bincount(inputs, minlength=99)
        return remembered[key].copy()

    record = one(measure, run=run, inputs=numbers, reference=lambda: np.bincount(numbers, minlength=99))
    assert record["status"] == "incorrect"
    assert "kept of an earlier call" in record["reason"]


def test_remembered_answers_are_found_where_they_hang_on_torchs_own_count_of_changes(measure):
    x = torch.rand(N)
    remembered = {}

    def run(inputs, out):
        key = (inputs.data_ptr(), inputs._version)
        if key not in remembered:
            remembered[key] = inputs.sort().values
        return remembered[key].clone()

    record = one(measure, run=run, inputs=x, reference=lambda: x.sort().values)
    assert record["status"] == "incorrect"


@pytest.mark.parametrize("kind", [dict, list])
def test_results_that_are_kept_beside_the_inputs_are_found(measure, kind):
    a, b = np.random.default_rng(5).random((2, 256, 4))

    def run(inputs, out):
        if len(inputs) == 2 and kind is dict:
            inputs["kept"] = inputs["a"] @ inputs["b"].T
        elif len(inputs) == 2:
            inputs.append(inputs[0] @ inputs[1].T)
        return inputs["kept" if kind is dict else 2].copy()

    inputs = {"a": a, "b": b} if kind is dict else [a, b]
    record = one(measure, COLD, run=run, inputs=inputs, reference=lambda: a @ b.T)
    assert (record["status"], record["timing"]) == ("incorrect", None)
    assert "the call changes its inputs" in record["reason"]


class Bag(dict):
    __getattr__ = dict.__getitem__


class Row(list):
    def __init__(self, name, items):
        super().__init__(items)
        self.name = name


@pytest.mark.parametrize(
    ("inputs", "run"),
    [
        (Bag(x=np.arange(8.0)), lambda inputs: inputs.x + 1),
        (Row("b", [np.arange(8.0)]), lambda inputs: inputs[0] + (inputs.name == "b")),
        ({"deep": Bag(x=np.arange(8.0))}, lambda inputs: inputs["deep"].x + 1),
    ],
    ids=["dict", "list", "nested"],
)
def test_inputs_of_a_users_own_kind_of_nest_stay_of_that_kind(measure, inputs, run):
    record = one(
        measure, COLD, run=lambda inputs, out: run(inputs), inputs=inputs, reference=lambda: np.arange(8.0) + 1
    )  # fmt: skip
    assert (record["status"], record["accuracy"]["rel_error"]) == ("ok", 0.0)


def test_outputs_in_one_place_do_not_make_a_cold_ring():
    x, shared = np.arange(64.0), np.empty(64)
    call = Call(
        run=lambda inputs, out: np.add(inputs, 1, out=out), inputs=x, make_out=lambda: shared, reference=None
    )
    with pytest.raises(ValueError, match="make_out gave the same memory twice"):
        ring.cold_ring(call, 1024, 8192, 1 << 30)


def attention(flash):
    q = torch.randn(1, 2, 64, 32)

    def build(problem):
        torch.backends.cuda.enable_flash_sdp(flash)
        found = []

        def run(inputs, out):
            found.append(torch.backends.cuda.flash_sdp_enabled())
            return torch.nn.functional.scaled_dot_product_attention(inputs, inputs, inputs)

        return Call(
            run=run, inputs=q, extra={"found": found},
            reference=lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q),
        )  # fmt: skip

    return build


def test_switches_of_attention_are_each_backends_own(measure):
    before = torch.backends.cuda.flash_sdp_enabled()
    payload = payload_of(flash=attention(True), plain=attention(False))
    records = measure(payload, make_item({}, ["flash", "plain"]), CPU).records
    assert set(records["flash"]["extra"]["found"]) == {True}
    assert set(records["plain"]["extra"]["found"]) == {False}
    assert records["plain"]["extra"]["settings_of_its_own"] == {"torch flash attention": "False"}
    assert torch.backends.cuda.flash_sdp_enabled() == before


def test_what_prepare_sets_holds_in_the_case_and_no_longer(measure):
    threads, found = torch.get_num_threads(), []

    def prepare(params, device):
        torch.set_num_threads(1)
        torch.set_default_dtype(torch.float64)

    payload = Payload("test", prepare=prepare)
    x = np.arange(8.0)

    @payload.backend("a")
    def build(problem):
        def run(inputs, out):
            found.append((torch.get_num_threads(), torch.get_default_dtype()))
            return inputs + 1

        return Call(run=run, inputs=x, reference=lambda: x + 1)

    measure(payload, make_item({}, ["a"]), CPU)
    assert set(found) == {(1, torch.float64)}
    assert (torch.get_num_threads(), torch.get_default_dtype()) == (threads, torch.float32)


def test_a_gpu_timer_on_a_cpu_is_named_as_what_it_is_not(measure):
    x = np.arange(8.0)
    record = one(
        measure, {**COLD, "timer": "graph"}, run=lambda inputs, out: inputs + 1, inputs=x, reference=lambda: x + 1
    )  # fmt: skip
    assert record["timing"]["timer"] == "host"
    assert "timer graph is for GPU work: measured by host" in record["reason"]
