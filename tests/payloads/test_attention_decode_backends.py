"""Each backend of attention_decode against a stand-in that attends slot by slot."""

import pytest
import torch
from harness import Device, Needs
from payload_helpers import make_item

H200 = Device("stand-in for sm_90", (9, 0), "cpu")
B200 = Device("stand-in for sm_100", (10, 0), "cpu")
SMALL = {"batch": 3, "kv_len": 21, "q_heads": 4, "kv_heads": 2, "head_dim": 32, "page_size": 8}


@pytest.fixture
def capability(standins, monkeypatch):
    import flashinfer

    return lambda value: monkeypatch.setattr(flashinfer, "CAPABILITY", value)


def run(load, measure, params, backends, device):
    item = make_item({**SMALL, **params}, backends, payload="attention_decode")
    return measure(load([item], "attention_decode").payload, item, device).records


@pytest.mark.parametrize(
    ("lengths", "dtype", "heads"),
    [("equal", "bfloat16", (4, 2)), ("ragged", "bfloat16", (8, 1)), ("ragged", "float16", (2, 2))],
)
def test_every_backend_attends_to_the_same_tokens(load, measure, capability, lengths, dtype, heads):
    capability(90)
    backends = [
        "torch",
        "flashinfer:auto",
        "flashinfer:cuda-cores",
        "flashinfer:fa2",
        "flashinfer:fa3",
        "flashinfer:cudnn",
    ]
    params = {"lengths": lengths, "dtype": dtype, "q_heads": heads[0], "kv_heads": heads[1]}
    records = run(load, measure, params, backends, H200)
    for backend, record in records.items():
        assert record["status"] == "ok", (backend, record["reason"])
        assert record["accuracy"]["cosine"] > 0.9999
    assert records["flashinfer:auto"]["resolved_backend"] == "flashinfer:fa2"
    assert records["flashinfer:auto"]["extra"]["tensor_cores"] == (heads[0] // heads[1] >= 4)
    assert records["torch"]["extra"]["timed"] == "keys and values lie contiguous, not in pages"


def test_the_cost_counts_cached_tokens_and_not_pages(load, measure):
    record = run(load, measure, {}, ["torch"], Device())["torch"]
    tokens = 3 * 21
    assert record["extra"]["tokens"] == tokens
    median = record["timing"]["median_us"]
    assert record["metrics"]["gbps"] * median * 1e3 == pytest.approx(2 * 32 * (2 * 2 * tokens + 2 * 4 * 3))
    assert record["metrics"]["tflops"] * median * 1e6 == pytest.approx(4 * 4 * 32 * tokens)


def mistaken(module, change):
    build = module.payload.backends["flashinfer:fa2"].build

    def wrong(problem):
        change(problem)
        return build(problem)

    module.payload.backend("mistaken", Needs(device="cuda"))(wrong)
    return module.payload


def one_token_more(problem):
    problem.contiguous()  # the reference keeps the right lengths
    reference = problem.reference()
    problem.reference = lambda: reference
    problem.lengths = [length + 1 for length in problem.lengths]


def one_token_less(problem):
    reference = problem.reference()
    problem.reference = lambda: reference
    problem.lengths = [length - 1 for length in problem.lengths]


def pages_of_another_request(problem):
    reference = problem.reference()
    problem.reference = lambda: reference
    problem.page_ids = problem.page_ids.roll(1)


def keys_as_values(problem):
    reference = problem.reference()
    problem.reference = lambda: reference
    problem.cache = problem.cache.flip(1)


@pytest.mark.parametrize("change", [one_token_more, one_token_less, pages_of_another_request, keys_as_values])
def test_tokens_from_the_wrong_place_are_found_out(load, measure, capability, change):
    capability(90)
    item = make_item({**SMALL, "batch": 8, "kv_len": 203}, ["mistaken"], payload="attention_decode")
    record = measure(mistaken(load([item], "attention_decode"), change), item, H200).records["mistaken"]
    assert record["status"] == "incorrect", record["accuracy"]


@pytest.mark.parametrize(
    ("backend", "device", "reason"),
    [
        ("flashinfer:fa3", B200, "sm_100 is not among the devices that it runs on: sm_90"),
        ("flashinfer:trtllm-gen", H200, "sm_90 is not among the devices that it runs on: sm_100, sm_103"),
        (
            "flashinfer:fa2",
            Device("stand-in for sm_75", (7, 5), "cpu"),
            "sm_75 is too old: needs sm_80 or newer",
        ),
    ],
)
def test_what_a_device_lacks_is_named(load, measure, standins, backend, device, reason):
    record = run(load, measure, {}, [backend], device)[backend]
    assert (record["status"], record["reason"]) == ("unsupported", reason)


def test_without_a_gpu_and_the_library_both_causes_are_named(load, measure):
    record = run(load, measure, {}, ["flashinfer:fa2"], Device())["flashinfer:fa2"]
    assert record["reason"] == "no CUDA device; flashinfer is not installed"


def test_heads_that_do_not_divide_are_an_error_that_says_so(load, measure):
    record = run(load, measure, {"q_heads": 5}, ["torch"], Device())["torch"]
    assert "q_heads must be a multiple of kv_heads" in record["reason"]


def test_the_pages_of_a_request_are_scattered_and_what_is_nobodys_is_large(load):
    item = make_item(SMALL, ["torch"], payload="attention_decode")
    problem = load([item], "attention_decode").payload.prepare(SMALL, Device())
    assert problem.page_ids.tolist() != sorted(problem.page_ids.tolist())
    assert len(set(problem.page_ids.tolist())) == 3 * 3
    unowned = problem.cache[problem.unowned()]
    assert float(unowned.float().std()) == pytest.approx(8.0, rel=0.2)
    assert len(unowned) == 2 * (3 * 3 + 3) * 8 - 2 * 3 * 21
    assert torch.isfinite(problem.cache).all()
