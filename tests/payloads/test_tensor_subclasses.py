"""Tensors that are made of others (quantised weights with their scales, as torchao has them) as inputs."""

import pytest
import torch
from harness import Call, Device, arrays
from payload_helpers import make_item, payload_of
from torch.utils._python_dispatch import return_and_correct_aliasing

CPU = Device()
COLD = {
    "cache": "cold", "timer": "auto", "min_time_ms": 3, "max_time_ms": 200, "target_rel_error": 0.2, "rounds": 3
}  # fmt: skip


class Scaled(torch.Tensor):
    """int8 codes and a scale for each row."""

    @staticmethod
    def __new__(cls, codes, scale):
        return torch.Tensor._make_wrapper_subclass(
            cls, codes.shape, strides=codes.stride(), dtype=torch.float32, device=codes.device
        )

    def __init__(self, codes, scale):
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self):
        return ["codes", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["codes"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.mm.default:
            weight, x = args
            return (weight.codes.float() @ x) * weight.scale
        if func is torch.ops.aten.detach.default:
            return return_and_correct_aliasing(func, args, kwargs or {}, cls(args[0].codes, args[0].scale))
        return NotImplemented  # from which torch makes its own error


@pytest.fixture
def weight():
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(-127, 128, (1024, 512), dtype=torch.int8, generator=generator)
    return Scaled(codes, torch.rand(1024, 1, generator=generator))


def record_of(measure, weight, run):
    x = torch.rand(512, 8, generator=torch.Generator().manual_seed(1))
    payload = payload_of(
        a=lambda problem: Call(
            run=run, inputs=(weight, x), reference=lambda: (weight.codes.float() @ x) * weight.scale
        )
    )
    return measure(payload, make_item({}, ["a"], measure=COLD), CPU).records["a"]


def test_a_weight_of_several_tensors_is_an_input_like_others(measure, weight):
    record = record_of(measure, weight, lambda inputs, out: torch.mm(*inputs))
    assert (record["status"], record["reason"]) == ("ok", None)
    assert (record["timing"]["cache"], record["accuracy"]["rel_error"]) == ("cold", 0.0)


def test_a_weight_that_is_not_read_is_found(measure, weight):
    own = Scaled(weight.codes.clone(), weight.scale.clone())
    record = record_of(measure, weight, lambda inputs, out: torch.mm(own, inputs[1]))
    assert record["status"] == "incorrect"
    assert "does not read array 1 of the inputs" in record["reason"]


def test_a_weight_that_is_changed_is_found(measure, weight):
    def run(inputs, out):
        result = torch.mm(*inputs)
        inputs[0].scale.mul_(1.0001)
        return result

    record = record_of(measure, weight, run)
    assert record["status"] == "incorrect"
    assert "the call changes its inputs" in record["reason"]


def test_a_copy_of_it_has_memory_of_its_own_and_counts_all_of_it(weight):
    copy = arrays.clone(weight)
    assert type(copy) is Scaled
    assert arrays.same(copy, weight)
    assert not arrays.overlap(copy, weight)
    assert arrays.nbytes(weight) == 1024 * 512 + 1024 * 4


@pytest.mark.parametrize(
    "kind",
    [
        lambda x: x.to_sparse(),
        lambda x: x.to_sparse_csr(),
        lambda x: torch.quantize_per_tensor(x, 1.0, 0, torch.qint8),
    ],
    ids=["coo", "csr", "quantised"],
)
def test_an_output_that_is_no_plain_tensor_is_compared_as_the_numbers_it_stands_for(measure, kind):
    x = torch.eye(16) * 3

    def record(factor):
        payload = payload_of(
            a=lambda problem: Call(run=lambda x, out: kind(x * factor), inputs=x, reference=lambda: x * 2)
        )
        return measure(payload, make_item({}, ["a"]), CPU).records["a"]

    assert (record(2)["status"], record(2)["reason"]) == ("ok", None)
    assert record(3)["status"] == "incorrect"
