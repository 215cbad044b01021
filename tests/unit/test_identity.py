"""Case ids stay what they are: results of years are matched by them."""

from __future__ import annotations

import pytest

from orchestrator.identity import canonical_json, case_id


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
