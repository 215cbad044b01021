"""What a farbench payload imports: declare backends, then `main(payload, CASES)`.

Standard library only until a backend is asked for; runs under Python 3.8 and later, with this folder beside the script.
"""

from __future__ import annotations

from . import flashinfer_tuner, gates, nvfp4, nvfp4_torch
from .declare import Backend, Call, Library, Needs, Payload, Reported, Unsupported
from .device import Device
from .worker import main

__all__ = [
    "Backend",
    "Call",
    "Device",
    "Library",
    "Needs",
    "Payload",
    "Reported",
    "Unsupported",
    "flashinfer_tuner",
    "gates",
    "main",
    "nvfp4",
    "nvfp4_torch",
]
