"""The harness as a rendered payload sees it: a top-level package beside the script."""

import importlib.util
import itertools
import shutil
import sys
from pathlib import Path

import pytest

PAYLOADS = Path(__file__).resolve().parents[2] / "payloads"
STANDINS = Path(__file__).resolve().parent / "standins"
sys.path.insert(0, str(PAYLOADS))

from harness.measure import CaseRun, Reporter  # noqa: E402

from orchestrator.rendering import Catalogue, render  # noqa: E402

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


@pytest.fixture
def measure():
    """Measure one case of a payload; gives the recorder, with `.healthy`."""

    def run(payload, item, device):
        recorder = Recorder()
        recorder.healthy = CaseRun(payload, item, device, recorder).run()
        return recorder

    return run


@pytest.fixture
def script(tmp_path):
    """Render a payload with the harness beside it, as on a host; gives the script's path."""
    numbers = itertools.count()

    def make(items, name="gemm_fp4", source=None):
        folder = tmp_path / f"scripts{next(numbers)}"
        shutil.copytree(
            PAYLOADS / "harness", folder / "harness", ignore=shutil.ignore_patterns("__pycache__")
        )
        if source is not None:
            templates = tmp_path / "templates"
            templates.mkdir(exist_ok=True)
            (templates / f"{name}.py.j2").write_text(source, encoding="utf-8")
        catalogue = Catalogue([tmp_path / "templates", PAYLOADS])
        path = folder / f"{name}.py"
        path.write_text(render(catalogue.find(name), items), encoding="utf-8")
        return path

    return make


@pytest.fixture
def load(script):
    """Import a rendered payload into this process; gives the module."""

    def make(items, name="gemm_fp4"):
        spec = importlib.util.spec_from_file_location("rendered_payload", script(items, name))
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return make


@pytest.fixture
def standins(monkeypatch):
    """Put the stand-in libraries where `import flashinfer` finds them."""
    monkeypatch.syspath_prepend(str(STANDINS))
    before = set(sys.modules)
    yield STANDINS
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("flashinfer", "sgl_kernel", "tensorcore"):
            del sys.modules[name]
