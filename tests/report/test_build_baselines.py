"""Two parts of one payload against different baselines: two tables, each against its own."""

from __future__ import annotations

from orchestrator.archive import RunDocument
from orchestrator.model import Device, Measurement, Status, Timing, Verdict
from orchestrator.report.build import lay_out
from orchestrator.report.speedup import Speedup

DEVICE = Device(uuid="GPU-1", index=0, name="H200", compute_capability="9.0")


def measured(case_id: str, backend: str, median_us: float) -> Measurement:
    return Measurement(
        run_id="r", host="h", device=DEVICE, case_id=case_id, label=case_id, payload="gemm", params={}, backend=backend,
        status=Status.OK, verdict=Verdict.VALID, timing=Timing(timer="graph", cache="cold", median_us=median_us, samples=9),
    )  # fmt: skip


def test_each_part_is_compared_with_its_own_baseline() -> None:
    cases = [
        {"id": "c1", "label": "c1", "payload": "gemm", "backends": ["a", "b"], "baseline": "a"},
        {"id": "c2", "label": "c2", "payload": "gemm", "backends": ["a", "b"], "baseline": "b"},
    ]
    document = RunDocument.model_validate(
        {
            "run_id": "r",
            "sweep": {"name": "s"},
            "plan": {"cases": cases, "backends": ["a", "b"], "baselines": {"gemm": "b"}},
        }
    )
    results = [measured(c, b, us) for c in ("c1", "c2") for b, us in (("a", 10.0), ("b", 20.0))]
    first, second = lay_out(document, "finished", results).tables
    assert (first.baseline, second.baseline) == ("a", "b")
    against_a = first.rows[0].cells[1].speedup
    against_b = second.rows[0].cells[0].speedup
    assert isinstance(against_a, Speedup)
    assert isinstance(against_b, Speedup)
    assert (against_a.value, against_b.value) == (0.5, 2.0)
