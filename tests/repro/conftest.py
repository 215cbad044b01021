"""A user's folder with real hosts, as in the end-to-end tests."""

from __future__ import annotations

from tests.e2e.conftest import host, laptop

__all__ = ["host", "laptop"]
