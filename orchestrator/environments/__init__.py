"""Payload environments of hosts: what belongs into them, and making them."""

from __future__ import annotations

from .install import Outcome, set_up
from .profiles import PROFILES, Profile, find_profile, read_requirements
from .wheelhouse import Wheelhouse, read_wheelhouse

__all__ = [
    "PROFILES",
    "Outcome",
    "Profile",
    "Wheelhouse",
    "find_profile",
    "read_requirements",
    "read_wheelhouse",
    "set_up",
]
