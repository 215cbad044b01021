"""Shared fixtures; they live in tests/support, where each says what it starts and stops."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Several tests at once on few cores: threads of torch that wait for each other must not do so by spinning. Read when
# torch is loaded, which is later.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

pytest_plugins = ["tests.support.fixtures"]
