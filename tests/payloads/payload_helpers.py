"""What the tests of the payloads share: cases to measure, and a keeper of what a case reports."""

import sys
from pathlib import Path

PAYLOADS = Path(__file__).resolve().parents[2] / "payloads"
STANDINS = Path(__file__).resolve().parent / "standins"
sys.path.insert(
    0, str(PAYLOADS)
)  # the harness as a rendered payload sees it: a top-level package beside the script

from harness import Payload  # noqa: E402
from harness.measure import Reporter  # noqa: E402

QUICK = {
    "cache": "hot",
    "timer": "auto",
    "min_time_ms": 6,
    "max_time_ms": 60,
    "target_rel_error": 0.05,
    "rounds": 3,
}


def make_item(params, backends, label="a case", payload="gemm_fp4", **more):
    item = {
        "case_id": "0123456789abcdef",
        "label": label,
        "payload": payload,
        "params": params,
        "backends": list(backends),
        "measure": QUICK,
        "accuracy": {},
        "timeout_s": 120,
        "compile_timeout_s": 600,
        "devices_per_case": 1,
        "done": [],
    }
    return {**item, **more}


def payload_of(**backends):
    """A payload of these backends, whose problem is the case's parameters."""
    payload = Payload("test", prepare=lambda params, device: params)
    for name, build in backends.items():
        payload.backend(name)(build)
    return payload


class Recorder(Reporter):
    """Keeps what a case reports, in order."""

    def __init__(self):
        self.events = []

    def phase(self, backend, phase):
        self.events.append((backend, phase))

    def measurement(self, record):
        self.events.append(record)

    @property
    def records(self):
        return {event["backend"]: event for event in self.events if isinstance(event, dict)}

    @property
    def phases(self):
        return [event for event in self.events if isinstance(event, tuple)]
