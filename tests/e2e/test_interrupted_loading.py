"""Ctrl-C while a library is being loaded, in the real command: an interrupt, whatever the library makes of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SCHEMA = """
from pydantic_core import SchemaValidator, core_schema

class Interrupted(type):
    def __getattribute__(self, name):
        raise KeyboardInterrupt

class Model(metaclass=Interrupted):
    pass

SchemaValidator(core_schema.model_schema(Model, core_schema.model_fields_schema({})))
"""
CHAINED = """
try:
    raise KeyboardInterrupt
except BaseException as error:
    raise ImportError("its extension cannot be loaded") from None
"""
WORD = "raise RuntimeError('KeyboardInterrupt: is but a word here')"


@pytest.mark.parametrize(
    ("library", "code"), [(SCHEMA, 130), (CHAINED, 130), (WORD, 70)], ids=["told", "chained", "a word"]
)
def test_an_interrupt_that_a_library_made_an_error_of_while_it_was_loaded_is_no_bug(
    tmp_path: Path, library: str, code: int
) -> None:
    (tmp_path / "duckdb.py").write_text(library, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", "query", "select 1", "--archive", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert (done.stderr == "interrupted\n") is (code == 130)
    assert ("This is a bug in farbench" in done.stderr) is (code == 70)
