"""The NVFP4 reference: numpy against torch bit for bit, and both against the formats' definitions."""

import numpy as np
import payload_helpers  # noqa: F401 - puts the harness on the path
import pytest
import torch
from harness import e4m3, nvfp4, nvfp4_torch, operands
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

finite = st.floats(-(2.0**100), 2.0**100, width=32)


def matrices(rows=5, blocks=6, elements=finite):
    shapes = st.tuples(st.integers(1, rows), st.integers(1, blocks).map(lambda n: 16 * n))
    return shapes.flatmap(lambda shape: hnp.arrays(np.float32, shape, elements=elements))


def test_every_e4m3_code_has_the_value_that_torch_gives_it():
    codes = np.arange(256, dtype=np.uint8)
    expected = torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(e4m3.decode(codes), expected)


def test_encoding_a_value_gives_its_code_and_halfway_goes_to_the_even_code():
    values = e4m3.values()[:127].astype(np.float64)
    np.testing.assert_array_equal(e4m3.encode(values), np.arange(127))
    halfway = ((values[:-1] + values[1:]) / 2).astype(np.float32)
    codes = e4m3.encode(halfway)
    assert (codes % 2 == 0).all()
    np.testing.assert_array_equal(codes, nvfp4_torch.e4m3_encode(torch.from_numpy(halfway)).numpy())


@given(hnp.arrays(np.float32, st.integers(1, 200), elements=st.floats(width=32, allow_nan=False)))
def test_e4m3_rounds_and_saturates_as_torch_does(x):
    np.testing.assert_array_equal(e4m3.encode(x), nvfp4_torch.e4m3_encode(torch.from_numpy(x)).numpy())


def test_a_nan_scale_stays_nan():
    assert np.isnan(e4m3.decode(e4m3.encode(np.float32([np.nan])))).all()


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        (0.25, 0),
        (0.26, 0.5),
        (0.75, 1),
        (1.25, 1),
        (1.75, 2),
        (2.5, 2),
        (3.5, 4),
        (5, 4),
        (5.01, 6),
        (100, 6),
    ],
)
def test_e2m1_rounds_to_nearest_with_ties_to_even(value, rounded):
    code = nvfp4.e2m1_encode(np.float32([value, -value]))
    assert [nvfp4.E2M1_VALUES[c & 7] for c in code] == [rounded, rounded]
    assert [c >> 3 for c in code] == [0, 1]


@settings(max_examples=200, deadline=None)
@given(matrices())
def test_numpy_and_torch_quantise_bit_for_bit_alike(x):
    a, b = nvfp4.quantise(x), nvfp4_torch.quantise(torch.from_numpy(x))
    assert a.global_scale == b.global_scale
    np.testing.assert_array_equal(a.scales, b.scales.numpy())
    np.testing.assert_array_equal(a.packed, b.packed.numpy())
    np.testing.assert_array_equal(nvfp4.dequantise(a), nvfp4_torch.dequantise(b).numpy())


@settings(deadline=None)
@given(matrices(elements=st.sampled_from([v * s for v in nvfp4.E2M1_VALUES for s in (1.0, -1.0)])))
def test_what_nvfp4_can_say_exactly_comes_back_in_its_place(x):
    x[:, ::16] = 6.0  # every block reaches the top of the format, so its scale is 1
    np.testing.assert_array_equal(nvfp4.dequantise(nvfp4.quantise(x, global_scale=1.0)), x)


def test_the_even_index_lies_in_the_low_nibble():
    x = np.zeros((1, 16), np.float32)
    x[0, 0], x[0, 1] = 6.0, -0.5
    q = nvfp4.quantise(x, global_scale=1.0)
    assert q.packed[0, 0] == 0x97  # code 7 below, code 9 above


@settings(deadline=None)
@given(matrices(elements=st.floats(-(2.0**-121), 2.0**-121, width=32)))
def test_tiny_values_quantise_without_nan(x):
    q = nvfp4.quantise(x)
    assert np.isfinite(nvfp4.dequantise(q)).all()
    assert np.isfinite(q.global_scale)


def test_zeros_stay_zeros():
    q = nvfp4.quantise(np.zeros((3, 32), np.float32))
    assert q.global_scale == 1.0
    assert not nvfp4.dequantise(q).any()


@given(st.integers(1, 300), st.integers(1, 13))
def test_swizzle_puts_each_scale_at_its_offset(rows, columns):
    scales = np.random.default_rng(rows * 31 + columns).integers(1, 255, (rows, columns), dtype=np.uint8)
    memory = nvfp4.swizzle(scales)
    assert memory.shape == nvfp4.padded_shape(rows, columns)
    flat, tiles = memory.reshape(-1), -(-columns // 4)
    r, c = np.indices((rows, columns))
    offset = ((r // 128) * tiles + c // 4) * 512 + (r % 32) * 16 + ((r % 128) // 32) * 4 + c % 4
    np.testing.assert_array_equal(flat[offset], scales)
    assert np.count_nonzero(flat) == rows * columns  # the padding is zero
    np.testing.assert_array_equal(nvfp4.unswizzle(memory, rows, columns), scales)
    tensor = torch.from_numpy(scales)
    np.testing.assert_array_equal(nvfp4_torch.swizzle(tensor).numpy(), memory)
    np.testing.assert_array_equal(
        nvfp4_torch.unswizzle(torch.from_numpy(memory), rows, columns).numpy(), scales
    )


def cosine(a, b):
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


def test_the_products_of_numpy_and_torch_agree_and_cost_what_fp4_costs():
    a, b = operands.realistic(48, 1024, 1), operands.realistic(96, 1024, 2)
    product = nvfp4.gemm(nvfp4.quantise(a), nvfp4.quantise(b))
    in_torch = nvfp4_torch.gemm(*(nvfp4_torch.quantise(torch.from_numpy(x)) for x in (a, b))).numpy()
    np.testing.assert_allclose(in_torch, product, rtol=1e-4, atol=1e-2)
    assert 0.985 < cosine(product, a @ b.T) < 0.999


def test_a_wrong_scale_layout_cannot_hide_behind_blocks_of_like_magnitude():
    a, b = nvfp4.quantise(operands.realistic(128, 2048, 1)), nvfp4.quantise(operands.realistic(128, 2048, 2))
    wrong = nvfp4.Quantised(b.packed, nvfp4.swizzle(b.scales), b.global_scale)
    assert cosine(nvfp4.gemm(a, wrong), nvfp4.gemm(a, b)) < 0.6


@given(hnp.arrays(np.float32, st.integers(1, 100), elements=finite))
def test_rounding_to_bfloat16_is_torchs(x):
    np.testing.assert_array_equal(
        nvfp4.round_to_bfloat16(x), torch.from_numpy(x).to(torch.bfloat16).float().numpy()
    )


def test_k_must_be_whole_blocks():
    with pytest.raises(ValueError, match="no multiple of 16"):
        nvfp4.quantise(np.zeros((2, 24), np.float32))
