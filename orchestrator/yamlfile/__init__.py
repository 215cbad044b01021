"""YAML 1.2 files as plain Python values that remember their lines, and pydantic faults told in terms of the file."""

from __future__ import annotations

from .document import Document, Fault, Loc, load, read_text, refusal
from .validation import faults_of, kind, suggestion, validate

__all__ = [
    "Document",
    "Fault",
    "Loc",
    "faults_of",
    "kind",
    "load",
    "read_text",
    "refusal",
    "suggestion",
    "validate",
]
