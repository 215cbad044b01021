"""Case ids stay what they are: results of years are matched by them."""

from __future__ import annotations

import pytest

from orchestrator.identity import canonical_json, canonical_row, case_id, host_of, scope


def test_ids_do_not_change_between_versions() -> None:
    params = {"m": 16, "n": 2048, "k": 6144, "out": "bf16", "x": 0.5, "é": [None, True]}
    assert case_id("gemm_fp4", params) == "992bd878b0fec5dc"
    assert case_id("gemm_fp4", dict(reversed(params.items()))) == case_id("gemm_fp4", params)


def test_canonical_json_is_one_text() -> None:
    assert canonical_json({"b": [1, 1.0, True, None], "a": "é"}) == r'{"a":"\u00e9","b":[1,1.0,true,null]}'


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_json_does_not_know_has_no_id(value: float) -> None:
    with pytest.raises(ValueError):
        case_id("p", {"x": value})


def test_equal_rows_are_one_text_that_people_can_read() -> None:
    assert canonical_row({"n": 2, "é": 1}) == canonical_row({"é": 1, "n": 2}) == '{"n": 2, "é": 1}'
    assert canonical_row(None) == canonical_row({}) == ""


@pytest.mark.parametrize(
    ("placement", "same"),
    [
        ("shard", [("a", "GPU-1", "B200"), ("b", "GPU-2", "B200")]),
        ("replicate", [("a", "GPU-1", "B200"), ("a", "GPU-2", "H200")]),
        ("replicate_devices", [("a", "GPU-1", "B200"), ("a", "GPU-1", "")]),
    ],
)
def test_a_scope_is_one_where_a_placement_wants_one_measurement(
    placement: str, same: list[tuple[str, str, str]]
) -> None:
    assert len({scope(placement, *where) for where in same}) == 1
    others = [
        ("c", "GPU-3", "H100"),
        ("a", "GPU-4", "A100") if placement != "replicate" else ("d", "GPU-1", "B200"),
    ]
    assert len({scope(placement, *where) for where in [same[0], *others]}) == 3


def test_the_host_of_a_device_s_scope() -> None:
    assert host_of(scope("replicate_devices", "a", "GPU-1", "B200")) == "a"
    assert host_of(scope("replicate_devices", "a", "", "")) == "a"
