"""Each backend of quantize_fp8 and quantize_fp4 against stand-in libraries, and what a wrong quantiser is told."""

import pytest
import torch
from harness import Device
from payload_helpers import make_item

H200 = Device("stand-in for sm_90", (9, 0), "cpu")
B200 = Device("stand-in for sm_100", (10, 0), "cpu")
FP4_BACKENDS = ["flashinfer", "flashinfer:cute-dsl", "sgl_kernel", "torch", "numpy"]


def measured(load, measure, payload, params, backends, device):
    item = make_item(params, backends, payload=payload)
    return measure(load([item], payload).payload, item, device).records


@pytest.mark.parametrize("inputs", ["realistic", "random_bits"])
@pytest.mark.parametrize("scaling", ["per_tensor", "per_row", "per_group"])
@pytest.mark.parametrize("m", [1, 37])
def test_every_fp8_quantiser_gives_the_codes(load, measure, standins, m, scaling, inputs):
    backends = ["sgl_kernel", "torch", "numpy"]
    params = {"m": m, "k": 512, "scaling": scaling, "inputs": inputs}
    records = measured(load, measure, "quantize_fp8", params, backends, H200)
    assert {name: (r["status"], r["reason"]) for name, r in records.items()} == dict.fromkeys(
        backends, ("ok", None)
    )
    for record in records.values():
        assert record["extra"]["codes_that_differ"] <= 0.005
        assert record["accuracy"]["float_cosine"] > 0.999
        moved = record["metrics"]["gbps"] * record["timing"]["median_us"] * 1e3
        scales = {"per_tensor": 1, "per_row": m, "per_group": m * 4}[scaling]
        assert moved == pytest.approx(3 * m * 512 + 4 * scales)
        assert "tflops" not in record["metrics"]


@pytest.mark.parametrize("inputs", ["realistic", "random_bits"])
@pytest.mark.parametrize("m", [1, 130])
def test_every_fp4_quantiser_gives_codes_and_swizzled_scales(load, measure, standins, monkeypatch, m, inputs):
    import flashinfer

    monkeypatch.setattr(flashinfer, "CAPABILITY", 100)
    records = measured(
        load, measure, "quantize_fp4", {"m": m, "k": 192, "inputs": inputs}, FP4_BACKENDS, B200
    )
    assert {name: (r["status"], r["reason"]) for name, r in records.items()} == dict.fromkeys(
        FP4_BACKENDS, ("ok", None)
    )
    for record in records.values():
        assert record["extra"]["scales_that_differ"] <= 0.005
        assert record["accuracy"]["float_cosine"] > 0.98


def test_on_hopper_fp4_quantisers_say_what_it_lacks(load, measure, standins):
    backends = ["flashinfer", "flashinfer:cute-dsl", "sgl_kernel"]
    records = measured(load, measure, "quantize_fp4", {"m": 16, "k": 128}, backends, H200)
    for record in records.values():
        assert record["status"] == "unsupported"
        assert record["reason"].startswith("sm_90 has no FP4 tensor cores")


def test_a_newer_sgl_kernel_lacks_scales_of_the_tensor_and_says_where_they_were(
    load, measure, standins, monkeypatch
):
    monkeypatch.delattr("sgl_kernel.sgl_per_tensor_quant_fp8")
    params = {"m": 16, "k": 128, "scaling": "per_tensor"}
    record = measured(load, measure, "quantize_fp8", params, ["sgl_kernel"], H200)["sgl_kernel"]
    assert record["status"] == "unsupported"
    assert "has no sgl_per_tensor_quant_fp8 (last in sgl-kernel 0.3.21)" in record["reason"]


def scales_too_large(input, output_q, output_s):
    scale = input.float().abs().amax(1, keepdim=True) / 224.0
    output_s.copy_(scale)
    output_q.copy_((input.float() / scale).to(output_q.dtype))


def truncates(input, output_q, output_s):
    scale = input.float().abs().amax(1, keepdim=True) / 448.0
    output_s.copy_(scale)
    nearest = (input.float() / scale).to(output_q.dtype)
    too_far = nearest.float().abs() > (input.float() / scale).abs()
    output_q.copy_((nearest.view(torch.uint8) - too_far.to(torch.uint8)).view(output_q.dtype))


def skips_the_last_row(input, output_q, output_s):
    scale = input.float().abs().amax(1, keepdim=True) / 448.0
    output_s[:-1] = scale[:-1]
    output_q[:-1] = (input.float() / scale).to(output_q.dtype)[:-1]


def writes_no_codes(input, output_q, output_s):
    output_s.copy_(input.float().abs().amax(1, keepdim=True) / 448.0)


@pytest.mark.parametrize("quantiser", [scales_too_large, truncates, skips_the_last_row, writes_no_codes])
def test_a_wrong_quantiser_is_found_out(load, measure, standins, monkeypatch, quantiser):
    monkeypatch.setattr("sgl_kernel.sgl_per_token_quant_fp8", quantiser)
    record = measured(load, measure, "quantize_fp8", {"m": 64, "k": 512}, ["sgl_kernel"], H200)["sgl_kernel"]
    assert (record["status"], record["timing"]) == ("incorrect", None), record["reason"]


@pytest.mark.parametrize(
    "change",
    [
        lambda codes, scales: ((codes >> 4) | (codes << 4), scales),
        lambda codes, scales: (codes, scales.view(torch.uint8).flip(0).contiguous()),
        lambda codes, scales: (codes ^ 0x88, scales),
    ],
    ids=["nibbles swapped", "scales in another order", "signs flipped"],
)
def test_a_wrong_fp4_layout_is_found_out(load, measure, standins, monkeypatch, change):
    import sgl_kernel

    right = sgl_kernel.scaled_fp4_quant
    monkeypatch.setattr(sgl_kernel, "scaled_fp4_quant", lambda *args: change(*right(*args)))
    record = measured(load, measure, "quantize_fp4", {"m": 128, "k": 256}, ["sgl_kernel"], B200)["sgl_kernel"]
    assert record["status"] == "incorrect"
