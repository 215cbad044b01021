"""The SVG for documents."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from orchestrator.archive import Archive, RunFolder
from orchestrator.errors import NothingToDo
from orchestrator.report import build
from orchestrator.report.plot import to_svg
from tests.pages.made_runs import EVIL, devices, failed, measurement, write_run

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return [e.text or "" for e in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_a_panel_for_each_family_and_a_curve_for_each_backend(made_run: RunFolder) -> None:
    svg = to_svg(build(Archive(made_run.path.parent.parent), made_run))
    shown = texts(svg)
    assert {"n=2048 k=6144", "n=768 k=6144", "flashinfer:cutlass", "sgl_kernel", "torch"} <= set(shown)
    assert {"16", "64", "256", "1024"} <= set(shown)
    curves = list(ElementTree.fromstring(svg).iter(f"{SVG}polyline"))
    assert [len(c.attrib["points"].split()) for c in curves] == [4, 3, 4, 4, 3, 4]
    assert "prefers-color-scheme:dark" in svg


def test_longer_times_are_drawn_higher(made_run: RunFolder) -> None:
    svg = to_svg(build(Archive(made_run.path.parent.parent), made_run), only="n=2048")
    curve = next(ElementTree.fromstring(svg).iter(f"{SVG}polyline"))
    points = [tuple(map(float, p.split(","))) for p in curve.attrib["points"].split()]
    assert points == sorted(points)
    assert [y for _, y in points] == sorted((y for _, y in points), reverse=True)


def test_times_that_lie_close_together_can_be_read_off(tmp_path: Path) -> None:
    cases = [
        {"id": f"{m:016x}", "label": f"m={m}", "payload": "p", "params": {"m": m, "n": 2, "k": 2}}
        for m in (16, 64)
    ]
    records = [
        measurement("gpu-a", devices("gpu-a", 1)[0], case, "torch", us)
        for case, us in zip(cases, (11.2, 12.1), strict=True)
    ]
    run = write_run(tmp_path, cases, records, ("gpu-a",), replicate="replicate")
    assert {"11", "11.5", "12", "12.5"} <= set(texts(to_svg(build(Archive(tmp_path), run))))


def test_the_same_run_gives_the_same_bytes(made_run: RunFolder) -> None:
    archive = Archive(made_run.path.parent.parent)
    assert to_svg(build(archive, made_run), "tflops") == to_svg(build(archive, made_run), "tflops")


def test_hostile_names_are_text(tmp_path: Path) -> None:
    case = {"id": "c" * 16, "label": "x", "payload": "p", "params": {"m": 2, "mode": EVIL}}
    records = [
        {**measurement("gpu-a", devices("gpu-a", 1)[0], {**case, "params": {"m": 2, "n": 2, "k": 2}}, EVIL, 3.0), "params": case["params"]}
    ]  # fmt: skip
    run = write_run(tmp_path, [case], records, ("gpu-a",), replicate="replicate")
    svg = to_svg(build(Archive(tmp_path), run))
    assert {f"mode={EVIL}", EVIL} <= set(texts(svg))
    assert not list(ElementTree.fromstring(svg).iter(f"{SVG}img"))
    assert not list(ElementTree.fromstring(svg).iter(f"{SVG}script"))


def test_nothing_to_plot_is_said(tmp_path: Path) -> None:
    case = {"id": "c" * 16, "label": "x", "payload": "p", "params": {"m": 2, "n": 2, "k": 2}}
    record = failed(measurement("gpu-a", devices("gpu-a", 1)[0], case, "torch", 3.0), "error", "boom")
    run = write_run(tmp_path, [case], [record], ("gpu-a",), replicate="replicate")
    with pytest.raises(
        NothingToDo, match="nothing to plot: no case has a time of one call that is not `invalid`"
    ):
        to_svg(build(Archive(tmp_path), run))


def test_what_only_leaves_out_is_said(made_run: RunFolder) -> None:
    with pytest.raises(
        NothingToDo, match="has 'n=4096' in its name; there are 2:\n  n=2048 k=6144\n  n=768 k=6144"
    ):
        to_svg(build(Archive(made_run.path.parent.parent), made_run), only="n=4096")
