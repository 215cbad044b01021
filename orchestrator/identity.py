"""What makes two cases the same: canonical JSON, and the case id made of it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from orchestrator.model import Params

CASE_ID_DIGITS = 16


def canonical_json(value: Any) -> str:
    """The one ASCII text of a JSON value: keys sorted, no spaces, `1` and `1.0` and `true` distinct.

    Raises `ValueError` for NaN, infinities, and what JSON does not know; `TypeError` for other types.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def case_id(payload: str, params: Params) -> str:
    """16 hex digits of the SHA-256 of the canonical JSON of payload name and typed parameters."""
    text = canonical_json({"params": dict(params), "payload": payload})
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:CASE_ID_DIGITS]
