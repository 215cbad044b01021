"""One rank of a gang on stand-in libraries: measures the cases of a rendered payload as on GPUs of a capability.

`python gang_rank.py SCRIPT STANDINS CASES` prints each record and phase as JSON lines, each rank its own.
"""

import importlib.util
import json
import os
import sys
from datetime import timedelta

script, standins, cases = sys.argv[1:4]
sys.path.insert(0, os.path.dirname(script))
if standins:
    sys.path.insert(0, standins)

from harness import Device, gang  # noqa: E402
from harness.measure import CaseRun, Reporter  # noqa: E402


class Printer(Reporter):
    def phase(self, backend, phase):
        print(json.dumps({"phase": [backend, phase]}), flush=True)

    def measurement(self, record):
        print(json.dumps(record), flush=True)


spec = importlib.util.spec_from_file_location("rendered_payload", script)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
gang.ALONE = timedelta(seconds=2)
own = gang.Gang.of(os.environ)
device = Device("stand-in for sm_90", (9, 0), "cpu", gang=own)
crossed = set()
for case in json.loads(cases):
    print(json.dumps({"case": case["label"]}), flush=True)
    healthy = CaseRun(module.payload, case, device, Printer(), crossed).run()
    print(json.dumps({"healthy": healthy}), flush=True)
own.close()
