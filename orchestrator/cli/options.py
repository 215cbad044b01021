"""Options that several commands share, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

HostsFile = Annotated[
    Path,
    typer.Option(
        "--hosts-file", envvar="FARBENCH_HOSTS_FILE", help="The file that lists the hosts.", show_default=True
    ),
]
ArchiveFolder = Annotated[
    Path,
    typer.Option(
        "--archive",
        envvar="FARBENCH_ARCHIVE",
        help="The folder that keeps every run; or s3://BUCKET/PREFIX, to read from.",
        show_default=True,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="Write it there instead of to standard output."),
]
Json = Annotated[
    bool, typer.Option("--json", help="One JSON document on standard output; messages on standard error.")
]
SweepFile = Annotated[Path, typer.Argument(metavar="SWEEP", help="A sweep file (YAML).", show_default=False)]
RunName = Annotated[
    str,
    typer.Argument(metavar="RUN", help="`latest`, a run id, or the beginning of one.", show_default=False),
]
Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="NAME", help="Run on this host instead of the sweep's; may be repeated."),
]
Tags = Annotated[
    list[str] | None,
    typer.Option(
        "--tag", metavar="TAG", help="Run on the hosts with this tag instead of the sweep's; may be repeated."
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="AXIS=VALUE", help="Replace an axis; the value is YAML, e.g. --set 'm=[16, 64]'."
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="GLOB", help="Only the cases whose label or id matches; may be repeated."),
]

DEFAULT_HOSTS_FILE = Path("hosts.yaml")
DEFAULT_ARCHIVE = Path("archive")
