"""Each backend of gemm_fp8, gemm_int8 and gemm_bf16 against stand-in libraries that read memory as tensor cores do."""

import os

import pytest
import torch
from harness import Device, Needs
from payload_helpers import make_item

H200 = Device("stand-in for sm_90", (9, 0), "cpu")
B200 = Device("stand-in for sm_100", (10, 0), "cpu")
RTX_PRO = Device("stand-in for sm_120", (12, 0), "cpu")
SHAPES = [(1, 128, 512), (16, 256, 1024), (130, 128, 512)]


@pytest.fixture
def libraries(standins, monkeypatch):
    """The stand-ins, as they behave on a device of this capability."""
    import flashinfer

    return lambda device: monkeypatch.setattr(flashinfer, "CAPABILITY", 10 * device.capability[0])


@pytest.fixture
def scaled_mm(monkeypatch):
    """`torch._scaled_mm` as on a GPU: it tells the scalings apart by the scales' shapes and strides."""
    import tensorcore

    def fake(
        self,
        mat2,
        scale_a,
        scale_b,
        bias=None,
        scale_result=None,
        out_dtype=None,
        use_fast_accum=False,
        *,
        out=None,
    ):
        (m, k), n = self.shape, mat2.shape[1]
        assert self.is_contiguous()
        assert mat2.stride() == (1, k)
        assert k % 16 == 0
        assert n % 16 == 0
        assert scale_a.dtype == scale_b.dtype == torch.float32
        if scale_a.numel() == scale_b.numel() == 1:
            scales = scale_a.reshape(1, 1), scale_b.reshape(1, 1)
        elif scale_a.shape == (m, 1) and scale_b.shape == (1, n):
            assert scale_a.is_contiguous()
            assert scale_b.is_contiguous()
            assert out_dtype == torch.bfloat16
            scales = scale_a, scale_b.t()
        else:
            assert scale_a.shape == (m, k // 128)
            assert scale_a.t().is_contiguous()
            assert scale_b.shape == (k // 128, n // 128)
            assert scale_b.t().is_contiguous()
            scales = scale_a, scale_b.t()
        return out.copy_(tensorcore.multiply8(self, mat2.t(), *scales, out_dtype))

    monkeypatch.setattr(torch, "_scaled_mm", fake)


def check_all_ok(records, backends, cosine=0.99999):
    assert {name: (r["status"], r["reason"]) for name, r in records.items()} == dict.fromkeys(
        backends, ("ok", None)
    )
    for name, record in records.items():
        # One that quantises by itself has a few other codes than the harness.
        assert record["accuracy"]["cosine"] > (0.9999 if name == "flashinfer:blockscale" else cosine)
        assert record["accuracy"]["float_cosine"] > 0.997
        assert record["timing"]["median_us"] > 0
        assert record["metrics"]["gbps"] > 0


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize(
    ("scaling", "backends"),
    [
        (
            "per_tensor",
            [
                "torch",
                "torch:fast_accum",
                "sgl_kernel",
                "flashinfer:cublas",
                "flashinfer:cudnn",
                "flashinfer:mm_fp8",
                "numpy",
            ],
        ),
        ("per_row", ["torch", "torch:fast_accum", "torch:dequant", "sgl_kernel", "numpy"]),
        ("blockwise", ["torch", "torch:dequant", "sgl_kernel", "flashinfer:blockscale", "numpy"]),
    ],
)
def test_every_fp8_library_gets_the_layout_it_wants(
    load, measure, libraries, scaled_mm, m, n, k, scaling, backends
):
    libraries(H200)
    item = make_item({"m": m, "n": n, "k": k, "scaling": scaling}, backends, payload="gemm_fp8")
    check_all_ok(measure(load([item], "gemm_fp8").payload, item, H200).records, backends)


def test_a_quantiser_that_misses_the_largest_of_a_block_is_caught(load, measure, libraries, monkeypatch):
    """As flashinfer 0.7.4 does. With normal operands nobody sees it: rows of a block are alike."""
    libraries(H200)
    from flashinfer import gemm

    monkeypatch.setattr(gemm, "BLOCK_ROWS_READ", 32)
    item = make_item(
        {"m": 16, "n": 256, "k": 512, "scaling": "blockwise"}, ["flashinfer:blockscale"], payload="gemm_fp8"
    )
    record = measure(load([item], "gemm_fp8").payload, item, H200).records["flashinfer:blockscale"]
    assert (record["status"], record["timing"]) == ("incorrect", None)
    assert record["reason"] == "cosine 0.999197 is below 0.9998: wrong layout or wrong kernel"


def test_a_compiler_that_only_python_finds_is_named_to_the_library(load, measure, libraries, monkeypatch):
    libraries(H200)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CUDA_HOME", "unset afterwards, whatever it was")
    monkeypatch.delenv("CUDA_HOME")
    item = make_item(
        {"m": 16, "n": 128, "k": 256, "scaling": "blockwise"}, ["flashinfer:blockscale"], payload="gemm_fp8"
    )
    records = measure(load([item], "gemm_fp8").payload, item, H200).records
    assert records["flashinfer:blockscale"]["status"] == "ok"
    assert os.environ["CUDA_HOME"] == "/usr/local/cuda"


def test_fp8_in_float16_out_where_a_library_has_it(load, measure, libraries, scaled_mm):
    libraries(H200)
    backends = ["torch", "sgl_kernel", "flashinfer:cublas", "flashinfer:mm_fp8"]
    item = make_item({"m": 16, "n": 128, "k": 256, "out_dtype": "float16"}, backends, payload="gemm_fp8")
    records = measure(load([item], "gemm_fp8").payload, item, H200).records
    assert {name: r["status"] for name, r in records.items()} == {
        **dict.fromkeys(backends, "ok"),
        "flashinfer:mm_fp8": "unsupported",
    }
    assert records["flashinfer:mm_fp8"]["reason"] == "flashinfer.gemm.mm_fp8 gives bfloat16 only"


@pytest.mark.parametrize("scaling", ["per_tensor", "blockwise"])
def test_flashinfers_cutlass_runs_on_blackwell(load, measure, libraries, scaling):
    libraries(B200)
    item = make_item(
        {"m": 16, "n": 256, "k": 512, "scaling": scaling}, ["flashinfer:cutlass"], payload="gemm_fp8"
    )
    records = measure(load([item], "gemm_fp8").payload, item, B200).records
    check_all_ok(records, ["flashinfer:cutlass"])
    function = {"per_tensor": "flashinfer.bmm_fp8", "blockwise": "flashinfer.gemm.gemm_fp8_nt_groupwise"}
    assert records["flashinfer:cutlass"]["extra"]["function"] == function[scaling]


@pytest.mark.parametrize("inputs", ["realistic", "random_bits"])
@pytest.mark.parametrize("out_dtype", ["bfloat16", "float16"])
def test_every_int8_library_gets_the_layout_it_wants(load, measure, libraries, inputs, out_dtype):
    backends = ["torch", "torch:dequant", "sgl_kernel", "numpy"]
    params = {"m": 32, "n": 128, "k": 256, "inputs": inputs, "out_dtype": out_dtype}
    item = make_item(params, backends, payload="gemm_int8")
    records = measure(load([item], "gemm_int8").payload, item, H200).records
    check_all_ok(records, backends)
    assert records["torch"]["extra"]["timed"] == "int32 product, and its scaling by two elementwise kernels"


@pytest.mark.parametrize(("m", "n", "k"), [(1, 128, 64), (16, 48, 320), (130, 64, 100)])
@pytest.mark.parametrize(
    ("device", "backends"),
    [
        (H200, ["torch", "flashinfer:cublaslt", "flashinfer:cudnn", "flashinfer:tinygemm", "numpy"]),
        (B200, ["flashinfer:cutlass", "flashinfer:tgv"]),
    ],
)
def test_every_bf16_library_gets_the_layout_it_wants(load, measure, libraries, device, backends, m, n, k):
    libraries(device)
    item = make_item({"m": m, "n": n, "k": k}, backends, payload="gemm_bf16")
    check_all_ok(measure(load([item], "gemm_bf16").payload, item, device).records, backends)


def test_padded_rows_are_computed_and_do_not_count(load, measure, libraries):
    params = {"m": 3, "n": 128, "k": 256, "pad_m": 32}
    item = make_item(params, ["torch", "sgl_kernel"], payload="gemm_int8")
    plain = make_item({**params, "pad_m": 1}, ["torch", "sgl_kernel"], payload="gemm_int8")
    payload = load([item], "gemm_int8").payload
    records = measure(payload, item, H200).records
    check_all_ok(records, ["torch", "sgl_kernel"])
    assert records["torch"]["extra"]["padded_rows"] == 32
    flops = records["torch"]["metrics"]["tflops"] * records["torch"]["timing"]["median_us"] * 1e6
    assert flops == pytest.approx(2 * 3 * 128 * 256)
    unpadded = measure(payload, plain, H200).records
    assert unpadded["torch"]["status"] == "unsupported"
    assert unpadded["torch"]["reason"] == "torch._int_mm needs m > 16 on a GPU (set pad_m: 32)"
    assert "padded_rows" not in unpadded["sgl_kernel"]["extra"]


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


def other_order(scales):
    """The same values and the same strides, in the order of the transposed matrix."""
    return scales.t().contiguous().reshape(scales.shape).t().contiguous().t()


@pytest.mark.parametrize(
    ("scaling", "backend", "change"),
    [
        ("per_tensor", "flashinfer:cublas", lambda i: (i[0], i[1].contiguous(), *i[2:])),
        ("per_tensor", "sgl_kernel", lambda i: (*i[:2], i[2] * 1.05, i[3])),
        ("per_row", "sgl_kernel", lambda i: (*i[:2], i[2].flip(0).contiguous(), i[3])),
        ("per_row", "sgl_kernel", lambda i: (*i[:2], i[2], i[3].roll(1).contiguous())),
        ("blockwise", "sgl_kernel", lambda i: (*i[:2], other_order(i[2]), i[3])),
        ("blockwise", "sgl_kernel", lambda i: (*i[:3], other_order(i[3]))),
    ],
)
def test_a_wrong_layout_or_scale_is_found_out(load, measure, libraries, scaling, backend, change):
    libraries(H200)
    item = make_item({"m": 64, "n": 256, "k": 1024, "scaling": scaling}, ["mistaken"], payload="gemm_fp8")
    payload = mistaken(load([item], "gemm_fp8"), backend, change)
    record = measure(payload, item, H200).records["mistaken"]
    assert (record["status"], record["timing"]) == ("incorrect", None), record["reason"]


def test_swapped_scales_of_int8_are_found_out(load, measure, libraries):
    item = make_item({"m": 64, "n": 64, "k": 256}, ["mistaken"], payload="gemm_int8")
    payload = mistaken(load([item], "gemm_int8"), "sgl_kernel", lambda i: (*i[:2], i[3], i[2]))
    assert measure(payload, item, H200).records["mistaken"]["status"] == "incorrect"


@pytest.mark.parametrize(
    ("payload", "backend", "device", "params", "reason"),
    [
        (
            "gemm_fp8",
            "flashinfer:cutlass",
            H200,
            {},
            "sm_90 is not among the devices that it runs on: sm_100",
        ),
        ("gemm_fp8", "torch", Device("A100", (8, 0), "cpu"), {}, "sm_80 is too old: needs sm_89 or newer"),
        (
            "gemm_fp8",
            "flashinfer:blockscale",
            B200,
            {},
            "sm_100 is not among the devices that it runs on: sm_90",
        ),
        (
            "gemm_fp8",
            "flashinfer:cudnn",
            H200,
            {"scaling": "per_row"},
            "flashinfer:cudnn has no per_row scaling",
        ),
        ("gemm_fp8", "flashinfer:mm_fp8", H200, {"scaling": "blockwise"}, "mm_fp8 has no blockwise scaling"),
        ("gemm_fp8", "flashinfer:blockscale", H200, {}, "has scaling blockwise only"),
        ("gemm_fp8", "sgl_kernel", H200, {"scaling": "blockwise", "n": 96}, "needs n % 128 = 0"),
        ("gemm_fp8", "torch", H200, {"scaling": "blockwise", "k": 640}, "need k % 512 = 0"),
        ("gemm_fp8", "torch:fast_accum", H200, {"scaling": "blockwise"}, "has no fast accumulation"),
        ("gemm_fp8", "torch", H200, {"n": 100}, "torch._scaled_mm needs n % 16 = 0"),
        ("gemm_int8", "sgl_kernel", B200, {}, "sm_100 is not among the devices that it runs on: sm_75"),
        ("gemm_bf16", "flashinfer:tgv", H200, {}, "sm_90 is not among the devices that it runs on: sm_100"),
        ("gemm_bf16", "flashinfer:tinygemm", H200, {"n": 100}, "needs n % 16 = 0"),
    ],
)
def test_what_cannot_run_says_why(load, measure, libraries, payload, backend, device, params, reason):
    libraries(device)
    item = make_item({"m": 16, "n": 128, "k": 512, **params}, [backend], payload=payload)
    record = measure(load([item], payload).payload, item, device).records[backend]
    assert record["status"] == "unsupported"
    assert reason in record["reason"]


def test_cublas_that_has_no_kernel_is_told_with_the_scaling_and_the_device(load, measure, monkeypatch):
    def refuses(*args, **kwargs):
        raise RuntimeError(
            "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling cublasLtMatmulAlgoGetHeuristic"
        )

    monkeypatch.setattr(torch, "_scaled_mm", refuses)
    item = make_item({"m": 16, "n": 128, "k": 512, "scaling": "per_row"}, ["torch"], payload="gemm_fp8")
    record = measure(load([item], "gemm_fp8").payload, item, RTX_PRO).records["torch"]
    assert record["status"] == "unsupported"
    assert (
        record["reason"] == "cuBLAS has no kernel for per_row scaling on sm_120 (CUBLAS_STATUS_NOT_SUPPORTED)"
    )


@pytest.mark.parametrize(
    ("payload", "params", "backend", "function"),
    [
        ("gemm_fp8", {"scaling": "blockwise"}, "sgl_kernel", "sgl_kernel.fp8_blockwise_scaled_mm"),
        ("gemm_fp8", {}, "flashinfer:mm_fp8", "flashinfer.gemm.mm_fp8"),
        ("gemm_int8", {}, "sgl_kernel", "sgl_kernel.int8_scaled_mm"),
        ("gemm_bf16", {}, "flashinfer:cublaslt", "flashinfer.mm_bf16"),
    ],
)
def test_a_library_without_the_function_is_unsupported(
    load, measure, libraries, monkeypatch, payload, params, backend, function
):
    libraries(H200)
    monkeypatch.delattr(function)
    item = make_item({"m": 16, "n": 128, "k": 512, **params}, [backend], payload=payload)
    record = measure(load([item], payload).payload, item, H200).records[backend]
    assert record["status"] == "unsupported"
    assert record["reason"].endswith("has no " + function.rpartition(".")[2])


def test_on_a_bare_cpu_both_causes_are_named_device_first(load, measure):
    backends = ["flashinfer:cublas", "flashinfer:cutlass", "sgl_kernel"]
    item = make_item({"m": 16, "n": 128, "k": 512}, backends, payload="gemm_fp8")
    records = measure(load([item], "gemm_fp8").payload, item, Device()).records
    assert records["flashinfer:cublas"]["reason"] == "no CUDA device; flashinfer is not installed"
    assert records["flashinfer:cutlass"]["reason"] == "no CUDA device; flashinfer is not installed"
    assert records["sgl_kernel"]["reason"] == "no CUDA device; sgl_kernel is not installed"


@pytest.mark.parametrize(
    ("payload", "backend"),
    [
        ("gemm_fp8", "flashinfer:cutlass"),
        ("gemm_bf16", "flashinfer:cutlass"),
        ("gemm_fp8", "flashinfer:cublas"),
    ],
)
def test_the_tactic_that_flashinfer_uses_is_recorded(load, measure, libraries, payload, backend):
    libraries(B200)
    item = make_item({"m": 16, "n": 128, "k": 256}, [backend], payload=payload)
    extra = measure(load([item], payload).payload, item, B200).records[backend]["extra"]
    assert extra["runner"] == "CutlassFp4GemmRunner"  # what the stand-in's tuner calls every runner
    assert extra["tactic"] == "7" or backend == "flashinfer:cublas"  # cuBLAS has heuristics of its own


@pytest.mark.parametrize("payload", ["gemm_fp8", "gemm_int8"])
def test_a_file_of_weights_is_multiplied(load, measure, tmp_path, payload):
    import numpy as np
    from test_harness_operands import save

    weight = np.random.default_rng(3).standard_normal((64, 128), dtype=np.float32)
    path = save(tmp_path / "w.safetensors", {"layers.0.down": ("F32", weight)})
    good = make_item(
        {"m": 32, "n": 64, "k": 128, "inputs": f"file:{path}#layers.0.down"}, ["torch"], payload=payload
    )
    bad = make_item(
        {"m": 32, "n": 32, "k": 128, "inputs": f"file:{path}#layers.0.down"}, ["torch"], payload=payload
    )
    rendered = load([good, bad], payload).payload
    assert measure(rendered, good, Device()).records["torch"]["status"] == "ok"
    record = measure(rendered, bad, Device()).records["torch"]
    assert record["status"] == "error"
    assert "layers.0.down is (64, 128), the case needs (32, 128)" in record["reason"]
