"""Eight-bit codes with scales: numpy against torch bit for bit, both against the formats, and comparing codes."""

import numpy as np
import payload_helpers  # noqa: F401 - puts the harness on the path
import pytest
import torch
from harness import codes, e4m3, nvfp4, nvfp4_torch, scaled8
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

GROUPS = [scaled8.WHOLE, scaled8.ROW, scaled8.SEGMENT, scaled8.BLOCK]
FORMS = [scaled8.E4M3, scaled8.INT8]

finite = st.floats(-(2.0**100), 2.0**100, width=32)
matrices = hnp.arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 300)), elements=finite)


@settings(max_examples=100, deadline=None)
@given(matrices, st.sampled_from(FORMS), st.sampled_from(GROUPS))
def test_numpy_and_torch_quantise_bit_for_bit_alike(x, form, group):
    a, b = scaled8.quantise(x, form, group), scaled8.quantise(torch.from_numpy(x), form, group)
    np.testing.assert_array_equal(a.scales, b.scales.numpy())
    np.testing.assert_array_equal(a.codes, b.codes.view(torch.uint8).numpy().view(a.codes.dtype))
    np.testing.assert_array_equal(scaled8.dequantise(a), scaled8.dequantise(b).numpy())


@settings(max_examples=60, deadline=None)
@given(matrices, st.sampled_from(FORMS), st.sampled_from(GROUPS))
def test_each_value_is_within_half_a_step_of_its_code(x, form, group):
    q = scaled8.quantise(x, form, group)
    scale = scaled8.dequantise(scaled8.Scaled(np.ones_like(x, np.int8), q.scales, group))
    units = np.abs(x.astype(np.float64) / scale)
    step = (
        1.0
        if form == scaled8.INT8
        else np.ldexp(1.0, np.maximum(np.frexp(np.maximum(units, 1e-30))[1] - 1, -6) - 3)
    )
    assert (np.abs(scaled8.dequantise(q) / scale - x / scale) <= 0.5001 * step + 1e-30).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("group", GROUPS)
def test_the_largest_of_a_group_gets_the_largest_code_and_zeros_stay_zeros(form, group):
    x = np.zeros((130, 300), np.float32)
    x[0, 0], x[129, 299] = -5.0, 3.0
    q = scaled8.quantise(x, form, group)
    top = scaled8.LARGEST[form]
    assert scaled8.decode(q.codes)[0, 0] == -top
    np.testing.assert_allclose(scaled8.dequantise(q)[[0, 129], [0, 299]], [-5.0, 3.0], rtol=0.06)
    assert np.count_nonzero(q.codes & 127) == 2
    assert np.isfinite(q.scales).all()


@pytest.mark.parametrize(
    ("group", "shape"),
    [(scaled8.WHOLE, (1, 1)), (scaled8.ROW, (130, 1)), (scaled8.SEGMENT, (130, 3)), (scaled8.BLOCK, (2, 3))],
)
def test_there_is_one_scale_for_each_group(group, shape):
    assert scaled8.quantise(np.ones((130, 300), np.float32), scaled8.E4M3, group).scales.shape == shape


def test_a_block_of_128_by_128_shares_its_scale_and_no_other_does():
    x = np.ones((256, 256), np.float32)
    x[5, 200] = 448.0
    scales = scaled8.quantise(x, scaled8.E4M3, scaled8.BLOCK).scales
    np.testing.assert_allclose(scales, np.float32([[1 / 448, 1], [1 / 448, 1 / 448]]))


def test_steps_between_codes_are_counted_across_zero():
    got, expected = np.uint8([0x80, 0x01, 0x81, 0x10]), np.uint8([0x00, 0x81, 0x00, 0x0E])
    assert codes.difference(got, expected, 7) == (0.75, 2)
    on_tensors = codes.difference(torch.from_numpy(got), torch.from_numpy(expected), 7)
    assert on_tensors == (0.75, 2)
    assert codes.difference(np.uint8([0x9]), np.uint8([0x1]), 3) == (1.0, 2)


def quantised(seed=0):
    x = np.random.default_rng(seed).standard_normal((64, 512)).astype(np.float32)
    return scaled8.quantise(x, scaled8.E4M3, scaled8.ROW)


def test_rare_differences_of_one_step_are_right_and_more_are_not():
    q = quantised()
    off = q.codes.copy()
    off[0, :20] += 1
    objection, facts = codes.objection(off, q.codes, 7, (q.scales, q.scales))
    assert objection is None
    assert facts == {"codes_that_differ": pytest.approx(20 / 32768), "scales_that_differ": 0.0}
    off[:, 0] += 1
    off[:, 1] += 1
    off[:, 2] += 1
    assert "of the codes differ" in codes.objection(off, q.codes, 7, (q.scales, q.scales))[0]
    one = q.codes.copy()
    one[3, 3] += 3
    assert "by up to 3 steps" in codes.objection(one, q.codes, 7, (q.scales, q.scales))[0]


def test_scales_may_differ_by_rounding_and_not_by_more():
    q = quantised()
    rounded = q.scales * np.float32(1 + 1e-6)
    assert codes.objection(q.codes, q.codes, 7, (rounded, q.scales))[0] is None
    wrong = q.scales.copy()
    wrong[5] *= 1.01
    assert "of the scales differ" in codes.objection(q.codes, q.codes, 7, (wrong, q.scales))[0]


def test_scales_that_are_codes_are_compared_as_codes():
    x = torch.randn(64, 512, generator=torch.Generator().manual_seed(1))
    q = nvfp4_torch.quantise(x)
    unpacked = nvfp4_torch.unpack(q.packed)
    assert codes.objection(unpacked, unpacked, 3, (q.scales, q.scales), 7)[0] is None
    swizzled = nvfp4_torch.swizzle(q.scales).reshape(-1)[: q.scales.numel()].reshape(q.scales.shape)
    assert "of the scales differ" in codes.objection(unpacked, unpacked, 3, (swizzled, q.scales), 7)[0]


def test_swapped_nibbles_are_a_difference_although_no_product_shows_them():
    q = nvfp4.quantise(np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32))
    swapped = (q.packed >> 4) | (q.packed << 4)
    pair = q.scales, q.scales
    assert (
        "of the codes differ" in codes.objection(nvfp4.unpack(swapped), nvfp4.unpack(q.packed), 3, pair, 7)[0]
    )


def test_e4m3_codes_of_torch_are_the_bytes_of_numpy():
    x = np.linspace(-448, 448, 999, dtype=np.float32).reshape(1, -1)
    q = scaled8.quantise(torch.from_numpy(x), scaled8.E4M3, scaled8.WHOLE)
    assert q.codes.dtype == torch.float8_e4m3fn
    np.testing.assert_array_equal(q.codes.view(torch.uint8).numpy(), e4m3.encode(x / q.scales.numpy()))
