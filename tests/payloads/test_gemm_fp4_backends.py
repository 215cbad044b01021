"""Each backend of gemm_fp4 against stand-in libraries that read memory as the tensor cores do."""

import sys

import pytest
import torch
from harness import Device, Needs
from payload_helpers import make_item

RTX_PRO = Device("stand-in for sm_120", (12, 0), "cpu")
B200 = Device("stand-in for sm_100", (10, 0), "cpu")
SHAPES = [(16, 128, 256), (64, 96, 320), (130, 256, 64)]


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize("out_dtype", ["bfloat16", "float16"])
def test_every_library_gets_the_layout_it_wants(load, measure, standins, m, n, k, out_dtype):
    flashinfer = ["flashinfer:cutlass", "flashinfer:b12x", "flashinfer:auto"]
    backends = [*flashinfer, "sgl_kernel", "sglang", "torch", "numpy"]
    item = make_item(
        {"m": m, "n": n, "k": k, "out_dtype": out_dtype}, backends, accuracy={"min_cosine": 0.999}
    )
    records = measure(load([item]).payload, item, RTX_PRO).records
    assert {name: record["status"] for name, record in records.items()} == dict.fromkeys(backends, "ok")
    for record in records.values():
        assert record["accuracy"]["cosine"] > 0.9999
        assert 0.985 < record["accuracy"]["float_cosine"] < 0.999
        assert record["timing"]["median_us"] > 0
    assert records["torch"]["resolved_backend"] == "torch:dequant"
    assert records["torch"]["extra"]["timed"] == "16-bit product; dequantisation is not timed"
    assert records["flashinfer:cutlass"]["extra"]["quantiser"] == "flashinfer"
    assert records["sglang"]["extra"]["quantiser"] == "sglang"
    assert records["numpy"]["extra"]["out_dtype"] == "float32"


@pytest.mark.parametrize("m", [16, 48])
def test_the_timed_calls_use_what_the_tuner_found_and_it_is_recorded(load, measure, standins, m):
    item = make_item({"m": m, "n": 128, "k": 256}, ["flashinfer:cutlass"])
    record = measure(load([item]).payload, item, RTX_PRO).records["flashinfer:cutlass"]
    assert record["extra"]["tactic"] == "7"
    assert record["extra"]["runner"] == "CutlassFp4GemmRunner"


def test_trtllm_gets_a_shuffled_b(load, measure, standins, monkeypatch):
    import flashinfer

    monkeypatch.setattr(flashinfer, "CAPABILITY", 100)
    item = make_item({"m": 16, "n": 256, "k": 256}, ["flashinfer:trtllm"])
    record = measure(load([item]).payload, item, B200).records["flashinfer:trtllm"]
    assert record["status"] == "ok", record["reason"]
    assert record["accuracy"]["cosine"] > 0.9999


def test_trtllm_says_which_shapes_it_cannot_shuffle(load, measure, standins):
    item = make_item({"m": 16, "n": 96, "k": 256}, ["flashinfer:trtllm"])
    record = measure(load([item]).payload, item, B200).records["flashinfer:trtllm"]
    assert record["status"] == "unsupported"
    assert "n % 128" in record["reason"]


def test_torch_scaled_mm_gets_flat_swizzled_scales_and_a_transposed_view(
    load, measure, monkeypatch, standins
):
    import tensorcore

    def scaled_mm(
        a,
        b,
        scale_a,
        scale_b,
        bias=None,
        scale_result=None,
        out_dtype=None,
        use_fast_accum=False,
        *,
        out=None,
    ):
        assert a.dtype == b.dtype == torch.float4_e2m1fn_x2
        assert a.is_contiguous()
        assert b.stride() == (1, b.shape[0])
        for rows, scale in ((a.shape[0], scale_a), (b.shape[1], scale_b)):
            height, width = tensorcore.padded(rows, a.shape[1] // 8)
            assert scale.dtype == torch.float8_e4m3fn
            assert scale.numel() == height * width
            assert scale.is_contiguous()
        codes = (a.view(torch.uint8), b.t().view(torch.uint8))
        scales = (scale_a.view(torch.uint8), scale_b.view(torch.uint8))
        return out.copy_(tensorcore.multiply(*codes, *scales, torch.ones(1), out_dtype))

    monkeypatch.setattr(torch, "_scaled_mm", scaled_mm)
    item = make_item({"m": 48, "n": 128, "k": 256}, ["torch:scaled_mm"])
    record = measure(load([item]).payload, item, B200).records["torch:scaled_mm"]
    assert record["status"] == "ok", record["reason"]
    assert record["accuracy"]["cosine"] > 0.9999
    assert 0.985 < record["accuracy"]["float_cosine"] < 0.999


def mistaken(module, name, change):
    """The payload with one more backend: an existing one whose inputs are changed before each call."""
    build = module.payload.backends[name].build

    def wrong(problem):
        call = build(problem)
        call.inputs = change(call.inputs)
        call.tune = call.describe = None
        return call

    module.payload.backend("mistaken", Needs(device="cuda"))(wrong)
    return module.payload


def unswizzled(scales, rows, blocks):
    from harness import nvfp4_torch

    plain = torch.zeros(nvfp4_torch.padded_shape(rows, blocks), dtype=torch.uint8)
    plain[:rows, :blocks] = nvfp4_torch.unswizzle(scales.view(torch.uint8), rows, blocks)
    return plain.view(scales.dtype)


def test_a_row_major_b_is_found_out(load, measure, standins):
    item = make_item({"m": 16, "n": 128, "k": 256}, ["mistaken"])
    payload = mistaken(
        load([item]), "flashinfer:cutlass", lambda inputs: (inputs[0], inputs[1].contiguous(), *inputs[2:])
    )
    record = measure(payload, item, RTX_PRO).records["mistaken"]
    assert (record["status"], record["verdict"], record["timing"]) == ("incorrect", None, None)
    assert "cosine" in record["reason"]


def test_unswizzled_scales_are_found_out_although_their_shape_passes(load, measure, standins):
    item = make_item({"m": 256, "n": 128, "k": 256}, ["mistaken"])
    payload = mistaken(
        load([item]), "sgl_kernel", lambda inputs: (*inputs[:2], unswizzled(inputs[2], 256, 16), *inputs[3:])
    )
    assert measure(payload, item, RTX_PRO).records["mistaken"]["status"] == "incorrect"


def test_unpadded_scales_are_an_error_of_the_call_and_not_called_unsupported(load, measure, standins):
    item = make_item({"m": 16, "n": 128, "k": 256}, ["mistaken"])
    payload = mistaken(
        load([item]), "sgl_kernel", lambda inputs: (*inputs[:2], inputs[2][:16].contiguous(), *inputs[3:])
    )
    record = measure(payload, item, RTX_PRO).records["mistaken"]
    assert record["status"] == "error"
    assert "padded and swizzled" in record["reason"]


def test_swapped_nibbles_on_one_side_are_found_out(load, measure, standins):
    item = make_item({"m": 16, "n": 128, "k": 256}, ["mistaken"])
    payload = mistaken(
        load([item]), "sgl_kernel", lambda inputs: ((inputs[0] >> 4) | (inputs[0] << 4), *inputs[1:])
    )
    assert measure(payload, item, RTX_PRO).records["mistaken"]["status"] == "incorrect"


def test_a_wrong_alpha_is_found_out_although_the_cosine_is_one(load, measure, standins):
    item = make_item({"m": 16, "n": 128, "k": 256}, ["mistaken"])
    payload = mistaken(load([item]), "sgl_kernel", lambda inputs: (*inputs[:4], inputs[4] * 2))
    record = measure(payload, item, RTX_PRO).records["mistaken"]
    assert record["status"] == "incorrect"
    assert record["accuracy"]["cosine"] > 0.9999


def test_a_librarys_own_refusal_is_unsupported_with_its_words(load, measure, standins, monkeypatch):
    import flashinfer

    item = make_item({"m": 16, "n": 128, "k": 256}, ["flashinfer:b12x", "torch"])
    payload = load([item]).payload
    for capability, words in (
        (100, "mm_fp4 does not support backend 'b12x' with capability 100"),
        (90, "nvfp4_quantize is not supported on sm_90"),
    ):
        monkeypatch.setattr(flashinfer, "CAPABILITY", capability)
        records = measure(payload, item, RTX_PRO).records
        assert records["flashinfer:b12x"]["status"] == "unsupported"
        assert words in records["flashinfer:b12x"]["reason"]
        assert records["torch"]["status"] == "ok"


def test_a_hopper_gpu_is_told_what_it_lacks(load, measure, standins):
    item = make_item({"m": 16, "n": 128, "k": 256}, ["flashinfer:cutlass", "torch:scaled_mm", "sgl_kernel"])
    records = measure(load([item]).payload, item, Device("stand-in for sm_90", (9, 0), "cpu")).records
    for record in records.values():
        assert record["status"] == "unsupported"
        assert record["reason"].startswith("sm_90 has no FP4 tensor cores: needs sm_100 or newer")


def test_kernels_of_another_blackwell_are_unsupported(load, measure, standins):
    item = make_item({"m": 16, "n": 128, "k": 256}, ["flashinfer:trtllm"])
    record = measure(load([item]).payload, item, RTX_PRO).records["flashinfer:trtllm"]
    assert record["status"] == "unsupported"
    assert record["reason"].startswith("sm_120 is not among the devices that it runs on: sm_100, sm_103")


def test_an_sgl_kernel_without_the_function_is_unsupported(load, measure, standins, monkeypatch):
    import sgl_kernel

    monkeypatch.delattr(sgl_kernel, "cutlass_scaled_fp4_mm")
    item = make_item({"m": 16, "n": 128, "k": 256}, ["sgl_kernel"])
    record = measure(load([item]).payload, item, RTX_PRO).records["sgl_kernel"]
    assert record["status"] == "unsupported"
    assert "has no cutlass_scaled_fp4_mm (last in sgl-kernel 0.3.21)" in record["reason"]


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("0.5.9", "sglang 0.5.9 is too old: needs 0.5.10 or newer"),
        ("0.5.16", "sglang: sglang 0.5.16 has no jit_kernel.nvfp4 (sglang 0.5.10 to 0.5.15 have it)"),
        ("0.5.15.post1", None),
    ],
)
def test_an_sglang_without_its_own_fp4_kernels_is_unsupported(
    load, measure, standins, monkeypatch, tmp_path, version, why
):
    installed = tmp_path / f"sglang-{version}.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    item = make_item({"m": 16, "n": 128, "k": 256}, ["sglang"])
    record = measure(load([item]).payload, item, RTX_PRO).records["sglang"]
    assert (record["status"], record["reason"]) == ("unsupported" if why else "ok", why)


def test_an_sglang_that_does_not_import_says_what_it_lacks(load, measure, standins, monkeypatch):
    item = make_item({"m": 16, "n": 128, "k": 256}, ["sglang", "torch"])
    payload = load([item]).payload
    monkeypatch.setitem(sys.modules, "sglang.jit_kernel.nvfp4", None)
    records = measure(payload, item, RTX_PRO).records
    assert records["sglang"]["status"] == "unsupported"
    assert records["sglang"]["reason"].startswith("does not import: ")
    assert "sglang.jit_kernel.nvfp4" in records["sglang"]["reason"]
    assert records["torch"]["status"] == "ok"


def test_without_a_gpu_and_the_library_both_causes_are_named(load, measure):
    item = make_item(
        {"m": 16, "n": 128, "k": 256}, ["flashinfer:cutlass", "sgl_kernel", "torch:scaled_mm", "numpy"]
    )
    recorder = measure(load([item]).payload, item, Device())
    records = recorder.records
    assert records["flashinfer:cutlass"]["reason"] == "no CUDA device; flashinfer is not installed"
    assert records["sgl_kernel"]["reason"] == "no CUDA device; sgl_kernel is not installed"
    assert records["torch:scaled_mm"]["reason"] == "no CUDA device"
    assert records["numpy"]["status"] == "ok"
    assert "flashinfer" not in sys.modules
    assert {name for name, _ in recorder.phases} == {"numpy"}


def test_a_k_that_is_no_multiple_of_16_is_an_error_that_says_so(load, measure):
    item = make_item({"m": 16, "n": 128, "k": 250}, ["numpy", "torch"])
    records = measure(load([item]).payload, item, Device()).records
    assert [record["status"] for record in records.values()] == ["error", "error"]
    assert all("multiple of 16" in record["reason"] for record in records.values())


def test_the_seed_changes_the_operands_and_nothing_else(load, measure):
    items = [make_item({"m": 16, "n": 128, "k": 256, "seed": seed}, ["numpy"]) for seed in (0, 0, 1)]
    payload = load(items).payload
    errors = [measure(payload, item, Device()).records["numpy"]["accuracy"]["float_cosine"] for item in items]
    assert errors[0] == errors[1] != errors[2]


@pytest.mark.parametrize("inputs", ["realistic", "random_bits"])
def test_padded_rows_and_random_bits_go_through_every_library(load, measure, standins, inputs):
    backends = ["flashinfer:cutlass", "sgl_kernel", "torch", "numpy"]
    item = make_item({"m": 5, "n": 128, "k": 256, "pad_m": 128, "inputs": inputs}, backends)
    records = measure(load([item]).payload, item, RTX_PRO).records
    for record in records.values():
        assert record["status"] == "ok", record["reason"]
        assert record["extra"]["padded_rows"] == 128
        assert (record["accuracy"]["float_cosine"] > 0.99999) == (inputs == "random_bits")


def test_kernels_without_tactics_are_not_tuned_for_every_size(standins, monkeypatch):
    import flashinfer
    from harness import flashinfer_tuner

    profiled = []

    def choose_one(self, custom_op, runners, tuning_config, inputs, **kwargs):
        if self.tuning:
            profiled.append(self.buckets)
        return runners[0], -1

    monkeypatch.setattr(flashinfer.AutoTuner, "choose_one", choose_one)

    def run_once():
        flashinfer.AutoTuner.get().choose_one("op", ["kernels"], None, [torch.zeros(48, 1)])

    flashinfer_tuner.tune(run_once, 48)
    assert profiled
    assert set(profiled) == {(48,)}
    assert flashinfer_tuner.tactic(run_once)["tactic"] == "-1"
