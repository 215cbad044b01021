"""The classic mistakes of examples/mistakes, made by a user's own payload: found out, or reported with the GPU's time."""

import pytest
from harness import Device
from payload_helpers import PAYLOADS, STANDINS, make_item

from orchestrator.rendering import Catalogue
from orchestrator.sweep import load_sweep

FOLDER = PAYLOADS.parent / "examples" / "mistakes"
H200 = Device("stand-in for sm_90", (9, 0), "cpu")
RTX_PRO = Device("stand-in for sm_120", (12, 0), "cpu")
HOT = {"cache": "hot", "timer": "host", "min_time_ms": 3, "max_time_ms": 5000, "rounds": 3}


@pytest.fixture
def records(load, measure):
    """Measure a mistake's backends at a shape."""
    catalogue = Catalogue([FOLDER / "payloads"])

    def run(name, params, device, **more):
        template = catalogue.find(name)
        item = make_item(params, template.header.default_backends, payload=name, **more)
        return measure(load([item], name, template.source).payload, item, device).records

    return run


@pytest.mark.parametrize("m", [16, 256])
def test_a_row_major_b_is_incorrect(records, standins, monkeypatch, m):
    import flashinfer

    monkeypatch.setattr(flashinfer, "CAPABILITY", 90)
    found = records("row_major_b", {"m": m, "n": 128, "k": 256}, H200)
    assert found["right"]["status"] == "ok", found["right"]["reason"]
    wrong = found["row_major_b"]
    assert (wrong["status"], wrong["timing"], wrong["verdict"]) == ("incorrect", None, None)
    assert abs(wrong["accuracy"]["cosine"]) < 0.1
    assert wrong["accuracy"]["rel_error"] > 1


def test_unswizzled_scales_with_small_m_are_the_librarys_own_error_and_padding_them_is_incorrect(
    records, standins
):
    found = records("unswizzled_scales", {"m": 16, "n": 128, "k": 256}, RTX_PRO)
    assert found["right"]["status"] == "ok", found["right"]["reason"]
    assert found["unswizzled"]["status"] == "error"
    assert "must be padded and swizzled" in found["unswizzled"]["reason"]
    assert found["padded"]["status"] == "incorrect"


def test_unswizzled_scales_with_large_m_pass_the_librarys_check_and_are_incorrect(records, standins):
    found = records("unswizzled_scales", {"m": 256, "n": 128, "k": 256}, RTX_PRO)
    assert {name: r["status"] for name, r in found.items()} == {
        "right": "ok",
        "unswizzled": "incorrect",
        "padded": "incorrect",
    }
    assert found["unswizzled"]["timing"] is None


def test_on_hopper_they_are_unsupported_with_the_reason(records, standins):
    for record in records("unswizzled_scales", {"m": 256, "n": 128, "k": 256}, H200).values():
        assert record["status"] == "unsupported"
        assert record["reason"].startswith("sm_90 has no FP4 tensor cores")


def test_an_output_that_is_not_written_is_incorrect(records):
    found = records("no_output", {"m": 32, "n": 64, "k": 64}, Device())
    assert found["right"]["status"] == "ok"
    assert found["no_output"]["status"] == "incorrect"
    assert "2048 of 2048 output elements are NaN" in found["no_output"]["reason"]
    assert found["half_output"]["status"] == "incorrect"
    assert "1024 of 2048 output elements are NaN" in found["half_output"]["reason"]


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(str(STANDINS))
    from fakecuda import FakeGpu

    made = FakeGpu()
    made.install(monkeypatch)
    return made


def test_a_host_loop_is_reported_with_the_gpus_time_or_as_what_it_is(records, gpu, monkeypatch):
    import torch

    product = torch.mm

    def kernel(a, b, out=None):
        gpu.launch(7.0, lambda: product(a, b, out=out))
        return out

    monkeypatch.setattr(torch, "mm", kernel)
    device = Device("a clock", (9, 0), "cpu:0")
    found = records("host_loop", {"m": 4, "n": 64, "k": 64}, device, measure=HOT)
    measured = found["measured"]
    assert (measured["status"], measured["timing"]["timer"]) == ("ok", "graph")
    assert measured["timing"]["median_us"] == pytest.approx(7.0)
    assert measured["timing"]["host_us"] != measured["timing"]["median_us"]
    assert "timer host is not used for GPU work: measured by graph" in measured["reason"]
    own = found["own_loop"]
    assert (own["status"], own["timing"]["timer"], own["accuracy"]) == ("ok", "payload", None)
    assert own["reason"] == "timed by the payload itself"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_each_has_a_sweep_that_fits_its_payload(path):
    sweep = load_sweep(path)
    (part,) = sweep.parts
    template = Catalogue([FOLDER / "payloads"]).find(part.payload)
    assert part.payload == path.stem
    assert set(part.backends) == set(template.header.backends)
    assert set(part.cases[0].params) == set(template.header.parameters)
