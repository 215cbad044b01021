"""Where operands come from: realistic values, random bits of a format, a file."""

import json
import os

import numpy as np
import payload_helpers  # noqa: F401 - puts the harness on the path
import pytest
import torch
from harness import e4m3, nvfp4, operands, safetensors, scaled8
from harness.operands import Inputs, Operand

REALISTIC = Inputs()


def save(path, tensors):
    """A `.safetensors` file of (dtype, array) by name."""
    header, data = {"__metadata__": {"made_by": "a test"}}, b""
    for name, (dtype, array) in tensors.items():
        held = array.tobytes()
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(held)],
        }
        data += held
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def test_realistic_values_are_bfloat16_and_come_from_the_seed():
    x = Operand("a", 200, 300, 5, "bf16").array(REALISTIC)
    assert (x.dtype, x.shape) == (np.float32, (200, 300))
    np.testing.assert_array_equal(nvfp4.round_to_bfloat16(x), x)
    np.testing.assert_array_equal(Operand("a", 200, 300, 5, "bf16").array(REALISTIC), x)
    assert (Operand("a", 200, 300, 6, "bf16").array(REALISTIC) != x).any()


@pytest.mark.parametrize("make", [operands.realistic, lambda *size: operands.realistic_on("cpu", *size)])
@pytest.mark.parametrize(
    ("group", "levels"), [(scaled8.SEGMENT, 8), (scaled8.BLOCK, 2), (scaled8.ROW, 2), ((1, 16), 64)]
)
def test_every_kind_of_scale_differs_from_its_neighbours(make, group, levels):
    x = np.asarray(torch.as_tensor(make(512, 1024, 3)).float())
    scales = scaled8.quantise(x, scaled8.E4M3, group).scales
    assert scales.max() / scales.min() > levels


def test_made_on_the_device_they_are_of_the_same_kind():
    here, there = operands.realistic(256, 512, 1), operands.realistic_on("cpu", 256, 512, 1)
    assert there.dtype == torch.bfloat16
    assert torch.equal(there, operands.realistic_on("cpu", 256, 512, 1))
    assert float(there.float().std()) == pytest.approx(float(here.std()), rel=0.5)
    assert operands.realistic_on("cpu", 3, 50, 1).shape == (3, 50)


def test_random_bits_of_fp8_are_the_codes_themselves_by_whatever_blocks():
    x = Operand("a", 256, 512, 1, "fp8").array(Inputs("random_bits"))
    for group in (scaled8.WHOLE, scaled8.ROW, scaled8.SEGMENT, scaled8.BLOCK):
        q = scaled8.quantise(x, scaled8.E4M3, group)
        assert set(np.unique(q.scales)) == {np.float32(2.0**-8)}
        np.testing.assert_array_equal(scaled8.dequantise(q), x)
    codes = np.unique(q.codes)
    assert len(codes) == 254
    assert not np.isnan(e4m3.decode(codes)).any()


def test_random_bits_of_int8_are_the_codes_themselves():
    x = Operand("a", 64, 512, 1, "int8").array(Inputs("random_bits"))
    q = scaled8.quantise(x, scaled8.INT8, scaled8.ROW)
    np.testing.assert_array_equal(scaled8.dequantise(q), x)
    assert len(np.unique(q.codes)) == 255


@pytest.mark.parametrize("global_scale", [None, 1.0])
def test_random_bits_of_nvfp4_are_the_codes_themselves(global_scale):
    x = Operand("a", 64, 512, 1, "nvfp4").array(Inputs("random_bits"))
    q = nvfp4.quantise(x, global_scale)
    np.testing.assert_array_equal(nvfp4.dequantise(q), x)
    assert len(np.unique(nvfp4.unpack(q.packed))) == 16
    assert len(np.unique(q.scales)) == 8


def test_random_bits_of_bfloat16_are_every_mantissa_and_no_infinity():
    x = Operand("a", 64, 512, 1, "bf16").array(Inputs("random_bits"))
    bits = x.view(np.uint32)
    assert np.isfinite(x).all()
    assert not (bits & 0xFFFF).any()
    assert len(np.unique((bits >> 16) & 127)) == 128
    assert 2.0**-8 <= np.abs(x).min() <= np.abs(x).max() < 2.0**8


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("realistic", Inputs("realistic")),
        ("random_bits", Inputs("random_bits")),
        ("file:/data/x.safetensors", Inputs("file", "/data/x.safetensors")),
        ("file:/data/x.safetensors#layers.0.w", Inputs("file", "/data/x.safetensors", "layers.0.w")),
        ("file:~/x", Inputs("file", os.path.expanduser("~/x"))),
    ],
)
def test_inputs_are_told_by_one_word_or_a_file(text, expected):
    assert Inputs.parse(text) == expected


@pytest.mark.parametrize("text", ["", "real", "file", "file:", "file:#x", "random_bits:3"])
def test_other_inputs_are_refused_with_the_known_ones(text):
    with pytest.raises(ValueError, match="known are realistic, random_bits and file:PATH"):
        Inputs.parse(text)


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        ("F32", np.float32([[1.5, -2], [0, 8]])),
        ("F64", np.float64([[1.5, -2], [0, 8]])),
        ("F16", np.float16([[1.5, -2], [0, 8]])),
        ("BF16", (np.float32([[1.5, -2], [0, 8]]).view(np.uint32) >> 16).astype(np.uint16)),
        ("F8_E4M3", e4m3.encode([[1.5, -2], [0, 8]])),
    ],
)
def test_a_file_of_any_float_type_is_read(tmp_path, dtype, stored):
    path = save(tmp_path / "x.safetensors", {"other": ("F32", np.float32([7])), "a": (dtype, stored)})
    read = safetensors.read(str(path), "a")
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, [[1.5, -2], [0, 8]])
    assert safetensors.read(str(path), "b") is None


def test_a_files_operands_are_rounded_to_bfloat16_and_a_may_be_missing(tmp_path):
    values = np.random.default_rng(1).standard_normal((4, 32), dtype=np.float32)
    path = save(tmp_path / "x.safetensors", {"b": ("F32", values)})
    inputs = Inputs("file", str(path))
    b = Operand("b", 4, 32, 0, "bf16").tensor(inputs, "cpu")
    assert torch.equal(b, torch.from_numpy(values).to(torch.bfloat16))
    a = Operand("a", 4, 32, 0, "bf16", optional=True)
    np.testing.assert_array_equal(a.array(inputs), a.array(REALISTIC))


def test_a_weight_is_found_by_its_name(tmp_path):
    values = np.ones((4, 32), np.float32)
    path = save(tmp_path / "x.safetensors", {"layers.0.w": ("F32", values)})
    b = Operand("b", 4, 32, 0, "bf16").array(Inputs("file", str(path), "layers.0.w"))
    np.testing.assert_array_equal(b, values)


def test_what_a_file_lacks_is_told_with_both_shapes(tmp_path):
    path = save(tmp_path / "x.safetensors", {"b": ("F32", np.ones((4, 16), np.float32))})
    with pytest.raises(ValueError, match=r"b is \(4, 16\), the case needs \(4, 32\)"):
        Operand("b", 4, 32, 0, "bf16").array(Inputs("file", str(path)))
    with pytest.raises(ValueError, match="has no tensor 'w'"):
        Operand("b", 4, 32, 0, "bf16").array(Inputs("file", str(path), "w"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no safetensors file"),
        (b"PK\x03\x04 something else entirely", "no safetensors file"),
        ((20).to_bytes(8, "little") + b"x" * 20, "header is no JSON"),
    ],
)
def test_another_file_is_no_safetensors_file(tmp_path, content, words):
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=words):
        safetensors.read(str(path), "a")


def test_a_file_cut_short_and_an_integer_tensor_are_refused(tmp_path):
    path = save(
        tmp_path / "x", {"a": ("F32", np.ones((4, 16), np.float32)), "i": ("I64", np.ones(2, np.int64))}
    )
    with pytest.raises(ValueError, match="i is I64; known are"):
        safetensors.read(str(path), "i")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="a is cut short"):
        safetensors.read(str(path), "a")


def raw(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return str(path)


GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (7, "not described as a tensor is"),
        ({}, "not described as a tensor is"),
        ({**GOOD, "shape": "2"}, "not described as a tensor is"),
        ({**GOOD, "shape": [-2]}, "not described as a tensor is"),
        ({**GOOD, "shape": [2.0]}, "not described as a tensor is"),
        ({**GOOD, "shape": [10**30, 10**30]}, "has 8 bytes, its shape says"),
        ({**GOOD, "data_offsets": [8, 0]}, "not described as a tensor is"),
        ({**GOOD, "data_offsets": [0]}, "not described as a tensor is"),
        ({**GOOD, "data_offsets": [-8, 0]}, "not described as a tensor is"),
        ({**GOOD, "data_offsets": [8, 16]}, "is cut short"),
        ({**GOOD, "data_offsets": [0, 4]}, "has 4 bytes, its shape says 8"),
        ({**GOOD, "dtype": ["F32"]}, "not described as a tensor is"),
        ({**GOOD, "dtype": "I4"}, "is I4; known are"),
    ],
)
def test_a_tensor_that_is_described_wrong(tmp_path, entry, words):
    path = raw(tmp_path / "x.safetensors", {"a": entry}, b"\0" * 8)
    with pytest.raises(ValueError, match=words) as caught:
        safetensors.read(path, "a")
    assert path in str(caught.value)


@pytest.mark.parametrize("header", [b"[]", b"3", b"[" * 50000, b"{" * 9, b'"' + b"x" * 30 + b'"'])
def test_a_header_that_is_none(tmp_path, header):
    with pytest.raises(ValueError, match="is no safetensors file"):
        safetensors.read(raw(tmp_path / "x.safetensors", header), "a")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3.4e38])
def test_values_that_bfloat16_does_not_hold_are_named(tmp_path, bad):
    values = np.ones((2, 16), np.float32)
    values[1, 3] = bad
    path = save(tmp_path / "x.safetensors", {"b": ("F32", values)})
    with pytest.raises(ValueError, match="b has 1 values that are NaN, infinite or too large for bfloat16"):
        Operand("b", 2, 16, 0, "bf16").array(Inputs("file", str(path)))
