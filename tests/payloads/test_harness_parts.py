"""Gates, input rings, accuracy limits, strict JSON and peaks."""

import json
import platform
import sys
from datetime import UTC, datetime

import numpy as np
import payload_helpers  # noqa: F401 - puts the harness on the path
import pytest
import torch
from harness import (
    Call,
    Device,
    Library,
    Needs,
    accuracy,
    arrays,
    environment,
    filling,
    gates,
    peaks,
    ring,
    strictjson,
)

SGL = Library(
    "sgl_kernel",
    ("sgl-kernel", "sglang-kernel"),
    symbol="cutlass_scaled_fp4_mm",
    gone_after={"sglang-kernel": "0.4.0"},
    hint="last in sgl-kernel 0.3.21",
)
H200 = Device("NVIDIA H200", (9, 0), "cuda:0")


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a distribution that holds an empty module."""

    def make(module, distribution, version):
        (tmp_path / module).mkdir()
        (tmp_path / module / "__init__.py").write_text("raise AssertionError('a gate must not import')")
        info = tmp_path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        monkeypatch.syspath_prepend(str(tmp_path))

    return make


def test_every_cause_is_named_the_devices_first(install):
    install("sgl_kernel", "sglang-kernel", "0.4.2")
    causes = gates.refusals(Needs(device="cuda", libraries=(SGL,), fp4=True), H200)
    assert "; ".join(causes) == (
        "sm_90 has no FP4 tensor cores: needs sm_100 or newer; "
        "sgl_kernel: sglang-kernel 0.4.2 has no cutlass_scaled_fp4_mm (last in sgl-kernel 0.3.21)"
    )
    assert "sgl_kernel" not in sys.modules


@pytest.mark.parametrize(
    ("distribution", "version", "refused"),
    [
        ("sgl-kernel", "0.3.21", False),
        ("sglang-kernel", "0.4.0", False),
        ("sglang-kernel", "0.4.1.post1", True),
        ("sglang-kernel", "0.4.10", True),
    ],
)
def test_versions_that_lost_a_function(install, distribution, version, refused):
    install("sgl_kernel", distribution, version)
    assert bool(gates.refusals(Needs(libraries=(SGL,)), Device())) is refused


def test_a_library_that_is_too_old(install):
    install("flashinfer", "flashinfer-python", "0.2.9")
    library = Library("flashinfer", ("flashinfer-python",), minimum="0.6")
    assert gates.library_refusal(library) == "flashinfer-python 0.2.9 is too old: needs 0.6 or newer"


@pytest.mark.parametrize(
    ("smaller", "larger"),
    [
        ("0.4.2", "0.4.10"),
        ("0.6.0rc1", "0.6"),
        ("0.4.1", "0.4.1.post1"),
        ("2.9.1", "2.11.0+cu130"),
        ("0.6.dev1", "0.6.0"),
        ("2.9.0a0+50eac811a6.nv25.9", "2.9"),
        ("v0.5.9", "0.6.0-RC1"),
        ("0.6.0-RC1", "1!0.6"),
    ],
)
def test_versions_order_as_pep_440_has_it(smaller, larger):
    assert gates.version_key(smaller) < gates.version_key(larger)


def test_a_package_that_is_half_removed_has_no_version(tmp_path, monkeypatch):
    (tmp_path / "flashinfer.py").write_text("", encoding="utf-8")
    (tmp_path / "flashinfer_python-0.6.0.dist-info").mkdir()
    (tmp_path / "flashinfer_python-0.6.0.dist-info" / "METADATA").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    library = Library("flashinfer", ("flashinfer-python",), minimum="0.7")
    assert gates.library_refusal(library) is None
    assert gates.installed_name(library) == "flashinfer"


def test_trailing_zeros_mean_nothing():
    assert gates.version_key("0.6") == gates.version_key("0.6.0")


def numbered(call_inputs):
    return Call(run=lambda inputs, out: None, inputs=call_inputs, reference=lambda: None)


@pytest.mark.parametrize(
    ("set_bytes", "target", "available", "cache", "sets"),
    [
        (800, 800, 0, "cold", 1),  # one set is as large as what must go by
        (800, 4000, 1 << 20, "cold", 6),
        (800, 4001, 1 << 20, "cold", 7),
        (800, 4000, 100, "hot", 1),
    ],
)
def test_a_cold_ring_lets_the_target_go_by_between_two_uses(set_bytes, target, available, cache, sets):
    made = ring.cold_ring(numbered(np.zeros(100)), set_bytes, target, available)
    assert (made.cache, len(made.sets)) == (cache, sets)
    assert (made.note is not None) == (cache == "hot")
    pointers = [inputs.ctypes.data for inputs, _ in (made.next() for _ in range(2 * sets))]
    assert pointers[:sets] == pointers[sets:]
    assert len(set(pointers)) == sets


@pytest.mark.parametrize(
    ("set_bytes", "can_evict", "cache", "sets", "evict"),
    [
        (100, True, "cold", 1024, True),
        (100, False, "cold", 4096, False),  # 410 kB are more than the 250 kB of the cache
        (70, False, "hot", 1, False),
    ],
)
def test_a_ring_of_too_many_sets_stays_cold_by_eviction_or_says_that_it_is_hot(
    set_bytes, can_evict, cache, sets, evict
):
    made = ring.cold_ring(numbered(np.zeros(8)), set_bytes, 500_000, 1 << 30, can_evict=can_evict)
    assert (made.cache, len(made.sets), made.evict) == (cache, sets, evict)
    assert (made.note or "").startswith(
        "not cold: it would take 7144 input sets of 0.07 kB" if cache == "hot" else ""
    )


def test_a_copy_keeps_strides_so_that_a_transposed_view_stays_one():
    inputs = (torch.arange(12, dtype=torch.uint8).reshape(3, 4).T, [np.zeros((2, 5)).T], "text")
    copy = arrays.clone(inputs)
    assert copy[0].stride() == inputs[0].stride() == (1, 4)
    assert copy[1][0].strides == inputs[1][0].strides
    assert copy[0].data_ptr() != inputs[0].data_ptr()
    assert torch.equal(copy[0], inputs[0])
    assert copy[2] == "text"
    assert arrays.nbytes(inputs) == 12 + 80


def test_poison_fills_whatever_a_call_may_leave_unwritten():
    values = (
        torch.zeros(3, dtype=torch.bfloat16),
        np.zeros(2, np.float32),
        torch.zeros(2, dtype=torch.float8_e4m3fn),
        torch.zeros(2, dtype=torch.uint8),
        torch.zeros(2, dtype=torch.int8),
        [np.zeros(2, np.int32), np.zeros(2, np.uint16), torch.zeros(2, dtype=torch.int32)],
        torch.zeros(512, dtype=torch.bool),
        np.zeros(512, bool),
        np.zeros(2, np.complex64),
        torch.zeros(2, dtype=torch.complex64),
        np.broadcast_to(np.float32(3), (2,)),
        torch.full((1,), 3.0).expand(2),
        torch.zeros(2, requires_grad=True),
    )
    filling.poison(values)
    assert values[0].isnan().all()
    assert np.isnan(values[1]).all()
    assert values[2].float().isnan().all()
    assert (values[3] == 255).all()
    assert (values[4] == -128).all()
    assert [int(v[0]) for v in values[5]] == [-(2**31), 2**16 - 1, -(2**31)]
    assert 200 < int(values[6].sum()) < 312
    assert 200 < values[7].sum() < 312
    assert np.isnan(values[8]).all()
    assert values[9].isnan().all()
    assert values[10][0] == values[11][0] == 3  # cannot be written to
    assert values[12].isnan().all()


def test_limits_follow_from_the_dtype_and_one_from_the_other():
    assert accuracy.Limits.choose({}, "bfloat16").min_cosine == 0.999
    assert accuracy.Limits.choose({}, "float32").min_cosine == 0.99999
    loose = accuracy.Limits.choose({"min_cosine": 0.97}, "bfloat16")
    assert loose.max_rel_error == pytest.approx(0.245, abs=1e-3)
    assert accuracy.Limits.choose({"max_rel_error": 0.5}, "bfloat16").max_rel_error == 0.5


def test_bfloat16_rounding_passes_and_a_tile_of_zeros_does_not():
    reference = torch.randn(256, 256, generator=torch.Generator().manual_seed(1))
    output = reference.to(torch.bfloat16)
    limits = accuracy.Limits.choose({}, "bfloat16")
    assert accuracy.compare(output, reference).objection(limits) is None
    output[64:66, 0:16] = 0
    compared = accuracy.compare(output, reference)
    assert compared.cosine > 0.999
    assert "part of the output is wrong" in compared.objection(limits)


def test_elements_far_larger_than_the_others_may_be_rounded_and_no_more():
    reference = torch.randn(256, 256, generator=torch.Generator().manual_seed(1))
    reference[3] *= 3000  # as the one token of a language model whose activations are huge
    output = reference.to(torch.bfloat16)
    limits = accuracy.Limits.choose({"min_cosine": 0.9999, "max_rel_error": 0.01}, "bfloat16")
    assert float((output.float() - reference).abs().max() / reference.square().mean().sqrt()) > 0.08
    assert accuracy.compare(output, reference).objection(limits) is None
    output[3, 7] *= 1.05
    assert "part of the output is wrong" in accuracy.compare(output, reference).objection(limits)


def test_an_output_of_zeros_is_called_so():
    reference = torch.ones(8)
    limits = accuracy.Limits.choose({}, "float32")
    assert accuracy.compare(reference * 0, reference).objection(limits) == (
        "the output is zero everywhere, the reference is not"
    )


def test_shapes_must_agree_and_a_broken_reference_is_no_verdict_on_the_output():
    with pytest.raises(ValueError, match="shape"):
        accuracy.compare(np.zeros((2, 3)), np.zeros((3, 2)))
    with pytest.raises(ValueError, match="reference itself"):
        accuracy.compare(np.zeros(2), np.array([np.nan, 0]))


def test_zeros_against_zeros_are_right_and_against_anything_else_wrong():
    limits = accuracy.Limits.choose({}, "float32")
    assert accuracy.compare(np.zeros(4), np.zeros(4)).objection(limits) is None
    assert accuracy.compare(np.zeros(4), np.ones(4)).objection(limits) is not None


def test_anything_becomes_strict_json():
    loop = []
    loop.append(loop)
    value = {
        "text": "x\u2028y\ud800",
        "bytes": b"\xff",
        "when": datetime(2026, 1, 2, tzinfo=UTC),
        "tensor": torch.tensor([1.0, float("nan")]),
        "loop": loop,
        None: {"set": {2, 1}},
        "large": 2**80,
    }
    plain, problems = strictjson.plain(value)
    back = json.loads(strictjson.dumps(plain))
    assert back["text"] == "x\u2028y\ufffd"
    assert back["bytes"] == "\ufffd"
    assert back["when"] == "2026-01-02T00:00:00+00:00"
    assert back["tensor"] == [1.0, None]
    assert problems == ["tensor[1] is NaN"]
    assert back["None"] == {"set": [1, 2]}
    assert back["large"] == 2**80


class Wordless:
    def __repr__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("value", "kept", "problem"),
    [
        (np.zeros(5_000_000), "ndarray of 5000000 values", "x is left out: a ndarray of 5000000 values"),
        (torch.zeros(300, 300), "Tensor of 90000 values", "x is left out: a Tensor of 90000 values"),
        (list(range(30_000)), "list of 30000 values", "x is left out: a list of 30000 values"),
        ({i: i for i in range(30_000)}, {str(i): i for i in range(20_000)}, "x is cut: 30000 keys"),
        ("y" * 2_000_000, "y" * 1_000_000, "x is cut: a text of 2000000 characters"),
        (10**5000, None, "x is too large an integer"),
        (10**1000, 10**1000, None),
        (np.zeros(2000), [0.0] * 2000, None),
        (Wordless(), "a Wordless without words", None),
        ({Wordless(): 1}, {"a Wordless without words": 1}, None),
    ],
    ids=["array", "tensor", "list", "dict", "text", "integer", "long integer", "samples", "object", "key"],
)
def test_what_is_too_much_for_a_record_is_told_and_the_rest_is_kept(value, kept, problem):
    plain, problems = strictjson.plain({"x": value, "y": 1})
    assert plain == {"x": kept, "y": 1}
    assert problems == ([problem] if problem else [])
    assert json.loads(strictjson.dumps(plain)) == plain


def test_many_lists_are_together_too_much_too():
    plain, problems = strictjson.plain({"rows": [[0.5] * 1000 for _ in range(1000)], "y": 1})
    assert len(strictjson.dumps(plain)) < 1_000_000
    assert plain["rows"][0] == [0.5] * 1000
    assert plain["rows"][-1] == "list of 1000 values"
    assert plain["y"] == 1
    left_out = sum(isinstance(row, str) for row in plain["rows"])
    assert (problems[0], problems[-1]) == (
        f"rows[{1000 - left_out}] is left out: a list of 1000 values", f"and {left_out - 20} more"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "nvfp4"),
    [
        ("NVIDIA B200", 9000),
        ("NVIDIA GB200", 10000),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 2015),
        ("NVIDIA GeForce RTX 5090", 1676),
        ("NVIDIA H200", None),
    ],
)
def test_peaks_are_dense_and_by_precision(name, nvfp4):
    assert peaks.peak_of(name).tflops.get("nvfp4") == nvfp4


def test_the_memory_of_the_server_edition_is_slower():
    kinds = ("Server", "Workstation")
    found = [peaks.peak_of(f"NVIDIA RTX PRO 6000 Blackwell {kind} Edition").memory_tbps for kind in kinds]
    assert found == [1.597, 1.79]


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA H200 NVL",
        "NVIDIA H100 PCIe",
        "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
        "cpu",
        "NVIDIA GH200 480GB",
        "NVIDIA GB300",
        "NVIDIA A100 80GB PCIe",
        "NVIDIA H20",
        "NVIDIA H200X",
        "NVIDIA B200A",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        "NVIDIA GeForce RTX 5090 D",
        "NVIDIA L40",
    ],
)
def test_a_device_that_only_sounds_alike_has_no_peak(name):
    assert peaks.peak_of(name) is None


def test_metrics_say_what_fraction_of_the_peak_was_reached():
    found = peaks.metrics(1000.0, "NVIDIA H200", 494.5e9, 2.4e9, "bf16")
    assert found["tflops"] == pytest.approx(494.5)
    assert found["peak_fraction"] == pytest.approx(0.5)
    assert found["gbps"] == pytest.approx(2400)
    assert found["bandwidth_fraction"] == pytest.approx(0.5)


def test_the_environment_names_what_is_installed_without_importing_it():
    found = environment.describe(Device(), ["flashinfer-python", "duckdb"])
    assert found["packages"]["numpy"] == np.__version__
    assert "duckdb" in found["packages"]
    assert "flashinfer-python" not in found["packages"]
    assert found["cuda"] is None
    assert found["python"] == sys.version.split()[0]
    json.loads(strictjson.dumps(strictjson.plain(found)[0]))


def test_the_system_is_named_as_python_names_it():
    assert environment.system() == platform.platform()
