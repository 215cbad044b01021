"""Fixtures that measure cases in this process, and render payloads as they lie on a host."""

import importlib.util
import itertools
import shutil
import sys

import pytest
from payload_helpers import PAYLOADS, STANDINS, Recorder

from orchestrator.rendering import Catalogue, render, script_name


@pytest.fixture
def measure():
    """Measure one case of a payload; gives the recorder, with `.healthy`."""

    def run(payload, item, device):
        from harness.measure import CaseRun

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
        path = folder / script_name(name)
        path.write_text(render(catalogue.find(name), items), encoding="utf-8")
        return path

    return make


@pytest.fixture
def load(script):
    """Import a rendered payload into this process; gives the module."""

    def make(items, name="gemm_fp4", source=None):
        spec = importlib.util.spec_from_file_location("rendered_payload", script(items, name, source))
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
        if name.split(".")[0] in ("cupti", "flashinfer", "sgl_kernel", "sglang", "tensorcore"):
            del sys.modules[name]
