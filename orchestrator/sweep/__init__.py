"""A sweep file: what to measure, how, and where."""

from __future__ import annotations

from .definition import Argument, Part, ScriptPayload, Sweep
from .loading import load_sweep
from .schema import Accuracy, Measure

__all__ = ["Accuracy", "Argument", "Measure", "Part", "ScriptPayload", "Sweep", "load_sweep"]
