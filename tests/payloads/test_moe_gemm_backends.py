"""Each backend of moe_gemm against stand-in libraries; which experts get rows; what counts as moved."""

import json

import pytest
import torch
from harness import Device, Needs, routing
from harness.ring import cold_ring
from payload_helpers import make_item

H200 = Device("stand-in for sm_90", (9, 0), "cpu")
B200 = Device("stand-in for sm_100", (10, 0), "cpu")
RTX_PRO = Device("stand-in for sm_120", (12, 0), "cpu")
SMALL = {"tokens": 6, "experts": 5, "top_k": 2, "n": 128, "k": 256}


@pytest.fixture
def libraries(standins, monkeypatch):
    def grouped(
        mat_a,
        mat_b,
        scale_a,
        scale_b,
        offs=None,
        bias=None,
        scale_result=None,
        out_dtype=None,
        use_fast_accum=False,
    ):
        (m, k), (experts, of_k, n) = mat_a.shape, mat_b.shape
        assert mat_a.dtype == mat_b.dtype == torch.float8_e4m3fn
        assert of_k == k
        assert mat_a.is_contiguous()
        assert mat_b.stride() == (n * k, 1, k)
        assert scale_a.shape == (m,)
        assert scale_b.shape == (experts, n)
        assert scale_a.dtype == scale_b.dtype == torch.float32
        assert offs.dtype == torch.int32
        assert offs.shape == (experts,)
        assert int(offs[-1]) == m
        assert out_dtype == torch.bfloat16
        parts, start = [], 0
        for expert, end in enumerate(offs.tolist()):
            left = mat_a[start:end].float() * scale_a[start:end, None]
            parts.append(left @ (mat_b[expert].float() * scale_b[expert]))
            start = end
        return torch.cat(parts).to(out_dtype)

    monkeypatch.setattr(torch, "_scaled_grouped_mm", grouped, raising=False)


def run(load, measure, params, backends, device):
    item = make_item({**SMALL, **params}, backends, payload="moe_gemm", accuracy={"min_cosine": 0.999})
    return measure(load([item], "moe_gemm").payload, item, device).records


@pytest.mark.parametrize(
    ("precision", "device", "backends"),
    [
        ("fp8", H200, ["torch", "torch:dequant", "torch:grouped", "flashinfer:cudnn", "sgl_kernel"]),
        ("fp8", B200, ["flashinfer:groupwise"]),
        ("nvfp4", RTX_PRO, ["torch", "flashinfer:cudnn", "flashinfer:groupwise", "sgl_kernel"]),
    ],
)
@pytest.mark.parametrize(
    "routed", [{"routing": "uniform"}, {"routing": "zipf", "tokens": 90, "experts": 3}, {"tokens": 1}]
)
def test_every_library_gets_the_layout_it_wants(
    load, measure, libraries, precision, device, backends, routed
):
    records = run(load, measure, {"precision": precision, **routed}, backends, device)
    for backend in backends:
        record = records[backend]
        assert record["status"] == "ok", (backend, record["reason"])
        assert record["accuracy"]["cosine"] > 0.9999
        assert (0.999 if precision == "fp8" else 0.985) < record["accuracy"]["float_cosine"] < 0.99999


def test_the_cost_is_that_of_active_experts_and_unpadded_rows(load, measure, libraries):
    params = {"tokens": 1, "experts": 8, "top_k": 2, "precision": "fp8"}
    record = run(load, measure, params, ["flashinfer:groupwise"], B200)["flashinfer:groupwise"]
    extra = record["extra"]
    assert (extra["rows"], extra["active_experts"], extra["idle_share"], extra["most_rows"]) == (
        2,
        2,
        0.75,
        1,
    )
    assert extra["padded_rows"] == 8
    moved = record["metrics"]["gbps"] * record["timing"]["median_us"] * 1e3
    weights, rows, scales, out = 2 * 128 * 256, 2 * 256, 4 * (2 * 2 + 2 * 1 * 2), 2 * 2 * 128
    assert moved == pytest.approx(weights + rows + scales + out)
    assert record["metrics"]["tflops"] * record["timing"]["median_us"] * 1e6 == pytest.approx(
        2 * 2 * 128 * 256
    )


def test_a_ring_is_cold_by_what_calls_touch_and_not_by_what_lies_around():
    from harness import Call

    call = Call(run=lambda inputs, out: inputs, inputs=torch.zeros(1000), reference=lambda: None)
    assert len(cold_ring(call, set_bytes=4000, target=2000, available=1 << 30).sets) == 1
    assert len(cold_ring(call, set_bytes=4000, target=2000, available=1 << 30, touched=500).sets) == 5
    assert cold_ring(call, set_bytes=4000, target=2000, available=8000, touched=500).cache == "hot"


def mistaken(module, name, change):
    build = module.payload.backends[name].build

    def wrong(problem):
        call = build(problem)
        call.inputs = change(call.inputs)
        return call

    module.payload.backend("mistaken", Needs(device="cuda"))(wrong)
    return module.payload


@pytest.mark.parametrize(
    ("precision", "backend", "device", "change"),
    [
        ("fp8", "flashinfer:cudnn", H200, lambda i: (i[0], i[1].roll(1, 0), *i[2:])),
        (
            "fp8",
            "flashinfer:groupwise",
            B200,
            lambda i: (*i[:2], i[2].t().contiguous().view_as(i[2]), *i[3:]),
        ),
        ("fp8", "sgl_kernel", H200, lambda i: (*i[:2], i[2].t().contiguous().view_as(i[2]), i[3])),
        ("nvfp4", "flashinfer:groupwise", RTX_PRO, lambda i: (*i[:2], i[2].roll(128, 0), *i[3:])),
        ("nvfp4", "sgl_kernel", B200, lambda i: (*i[:4], i[4] * 2)),
    ],
)
def test_experts_or_scales_in_the_wrong_place_are_found_out(
    load, measure, libraries, precision, backend, device, change
):
    item = make_item({**SMALL, "tokens": 90, "precision": precision}, ["mistaken"], payload="moe_gemm")
    payload = mistaken(load([item], "moe_gemm"), backend, change)
    assert measure(payload, item, device).records["mistaken"]["status"] == "incorrect"


@pytest.mark.parametrize(
    ("precision", "backend", "device", "reason"),
    [
        (
            "fp8",
            "flashinfer:groupwise",
            RTX_PRO,
            "sm_120 is not among the devices that it runs on: sm_100, sm_103",
        ),
        (
            "nvfp4",
            "flashinfer:groupwise",
            B200,
            "sm_100 is not among the devices that it runs on: sm_120, sm_121",
        ),
        ("nvfp4", "flashinfer:cudnn", H200, "sm_90 is not among the devices that it runs on: sm_100, sm_103"),
        ("nvfp4", "sgl_kernel", H200, "sm_90 is not among the devices that it runs on: sm_100, sm_103"),
        ("nvfp4", "torch:grouped", H200, "torch._scaled_grouped_mm is measured with fp8"),
        ("fp8", "torch:grouped", B200, "sm_100 is not among the devices that it runs on: sm_90"),
    ],
)
def test_what_a_device_lacks_is_named(load, measure, libraries, precision, backend, device, reason):
    record = run(load, measure, {"precision": precision}, [backend], device)[backend]
    assert record["status"] == "unsupported"
    assert record["reason"].startswith(reason)


def test_a_library_without_the_function_is_unsupported(load, measure, libraries, monkeypatch):
    import sgl_kernel

    monkeypatch.delattr(sgl_kernel, "fp8_blockwise_scaled_grouped_mm")
    monkeypatch.delattr(sgl_kernel, "cutlass_fp4_group_mm")
    fp8 = run(load, measure, {"precision": "fp8"}, ["sgl_kernel"], H200)["sgl_kernel"]
    assert "has no fp8_blockwise_scaled_grouped_mm" in fp8["reason"]
    fp4 = run(load, measure, {"precision": "nvfp4"}, ["sgl_kernel"], B200)["sgl_kernel"]
    assert "has no cutlass_fp4_group_mm (last in sgl-kernel 0.3.21)" in fp4["reason"]


def test_uniform_routing_leaves_the_expected_share_of_experts_idle():
    idle = [routing.rows_of_experts("uniform", 64, 256, 8, seed).count(0) / 256 for seed in range(40)]
    assert sum(idle) / len(idle) == pytest.approx((1 - 8 / 256) ** 64, abs=0.01)
    assert sum(routing.rows_of_experts("uniform", 64, 256, 8)) == 512


def test_no_token_goes_to_an_expert_twice():
    assert routing.rows_of_experts("zipf", 50, 4, 4, zipf_exponent=3.0) == [50] * 4
    assert max(routing.rows_of_experts("zipf", 1000, 64, 2, zipf_exponent=5.0)) <= 1000


def test_zipf_is_skewed_by_its_exponent_and_seeded():
    flat, skewed = (
        sorted(routing.rows_of_experts("zipf", 2000, 16, 1, 3, exponent), reverse=True)
        for exponent in (0.0, 1.0)
    )
    assert flat[0] < 200
    harmonic = sum(1 / rank for rank in range(1, 17))
    assert skewed[0] == pytest.approx(2000 / harmonic, rel=0.15)
    assert skewed[1] == pytest.approx(1000 / harmonic, rel=0.25)
    once, again, other = (routing.rows_of_experts("zipf", 100, 16, 2, seed) for seed in (1, 1, 2))
    assert once == again != other


def test_balanced_routing_differs_by_one_row_at_most():
    assert routing.rows_of_experts("balanced", 5, 4, 2) == [3, 3, 2, 2]


def test_routing_from_a_file(load, measure, tmp_path):
    rows, trace = tmp_path / "rows.json", tmp_path / "trace.json"
    rows.write_text(json.dumps([0, 3, 0, 1, 2]))
    trace.write_text(json.dumps([[1, 4], [1, 3], [4, 1]]))
    assert routing.rows_of_experts(f"file:{rows}", 3, 5, 2) == [0, 3, 0, 1, 2]
    assert routing.rows_of_experts(f"file:{trace}", 3, 5, 2) == [0, 3, 0, 1, 2]
    params = {"routing": f"file:{rows}", "tokens": 3, "top_k": 2}
    record = run(load, measure, params, ["torch"], Device())["torch"]
    assert (record["status"], record["extra"]["active_experts"]) == ("ok", 3)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[1, 2]", "no list of rows for 5 experts"),
        ("[[9]]", "9 is none of 5 experts"),
        ('{"a": 1}', "no list of rows"),
        ("[100000, 0, 0, 0, 0]", "has 100000 rows, and the case says tokens=16 top_k=2, which makes 32"),
    ],
)
def test_a_file_that_is_no_routing_is_an_error_that_says_so(load, measure, tmp_path, text, complaint):
    path = tmp_path / "routing.json"
    path.write_text(text)
    params = {"routing": f"file:{path}", "tokens": 16, "top_k": 2}
    record = run(load, measure, params, ["torch"], Device())["torch"]
    assert record["status"] == "error"
    assert complaint in record["reason"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[1, 2", "is no JSON"),
        ("[" * 50000, "is no JSON"),
        ("[[], []]", "no token has an expert"),
        ("[[0, 1], [2, 2]]", r"a token has an expert twice: \[2, 2\]"),
        ("[[0, 4]]", "4 is none of 4 experts"),
        ("[0, 0, 0, 0]", "is no list of rows"),
        ("[4, 4, 4, 3]", "has 15 rows, and the case says tokens=8 top_k=2, which makes 16"),
        ("[9, 7, 0, 0]", "an expert has 9 rows, and the case says tokens=8"),
        ("[[0, 1], [2, 3]]", "has 2 tokens, and the case says tokens=8"),
        (
            "[[0, 1], [2, 3], [0, 1], [2, 3], [0, 1], [2, 3], [0, 1], [2]]",
            "token 7 has 1 experts, and the case says top_k=2",
        ),
    ],
)
def test_a_routing_file_is_read_with_care(tmp_path, text, complaint):
    path = tmp_path / "routing.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=complaint) as caught:
        routing.rows_of_experts(f"file:{path}", 8, 4, 2)
    assert str(path) in str(caught.value)


def test_an_unknown_routing_is_an_error_that_lists_the_known(load, measure):
    record = run(load, measure, {"routing": "pareto"}, ["torch"], Device())["torch"]
    assert "known are uniform, zipf, balanced and file:PATH" in record["reason"]
