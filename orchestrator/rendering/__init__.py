"""From templates and cases to the scripts and argument lists that run on hosts."""

from __future__ import annotations

from .arguments import arguments
from .catalogue import Catalogue, Template, harness_files
from .header import Header, Parameter
from .scripts import render, script_name

__all__ = [
    "Catalogue",
    "Header",
    "Parameter",
    "Template",
    "arguments",
    "harness_files",
    "render",
    "script_name",
]
