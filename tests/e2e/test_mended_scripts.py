"""Programs that name their backends themselves."""

from __future__ import annotations

from tests.e2e.conftest import Laptop

PROGRAM = """
print('{"backend": "fa", "time_us": 1}')
print('{"backend": "fb", "time_us": 2}')
"""


def test_a_program_that_names_its_backends_itself_is_missed_nothing(laptop: Laptop) -> None:
    laptop.write("hosts.yaml", "hosts:\n  local: {embedded: true, devices: {cpu: 1}}\n")
    laptop.write("bench.py", PROGRAM)
    laptop.write("sweep.yaml", "name: s\npayload: {script: bench.py}\nbaseline: fa\n")
    done = laptop.farbench("run", "sweep.yaml")
    assert done.code == 0, done.stderr
    assert sorted((m["backend"], m["status"]) for m in laptop.measurements()) == [("fa", "ok"), ("fb", "ok")]
    again = laptop.farbench("resume", "latest")
    assert "lost" not in again.stdout + again.stderr
    assert len(laptop.measurements()) == 2
