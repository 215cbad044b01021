"""Shared fixtures; they live in tests/support, where each says what it starts and stops."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

pytest_plugins = ["tests.support.fixtures"]
