"""The worked notebook, where it lies, runs from its first cell to its last, and shows what its words promise."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.e2e.conftest import end_processes_below

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.timeout(240)
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    opened_in = tmp_path / "clone" / "examples"  # where Jupyter has it: beside the sweeps, below hosts.yaml
    shutil.copytree(EXAMPLES, opened_in)
    (tmp_path / "clone" / "hosts.yaml").write_text(
        f"hosts:\n  local: {{embedded: true, devices: {{cpu: 2}}, workdir: {work}}}\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parent))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    notebook.cells += copy.deepcopy(
        notebook.cells
    )  # once more: then the archive has the runs of the first time
    try:
        NotebookClient(notebook, timeout=90, resources={"metadata": {"path": str(opened_in)}}).execute()
    finally:
        end_processes_below(tmp_path)
    outputs = [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs]
    text = "\n".join(o.get("text", "") + str(o.get("data", {}).get("text/plain", "")) for o in outputs)
    assert "numpy" in text
    assert "unsupported" in text
    assert "median_us" in text
    assert any(word in text for word in ("'same'", "'unclear'", "'faster'", "'slower'"))
    assert not any(o.output_type == "error" for o in outputs)
