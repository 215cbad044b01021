"""The runs of an archive, as `farbench runs` lists them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rich.text import Text

from orchestrator.archive import Archive, RunFolder, fold_run, known_total, read_document, read_outline
from orchestrator.archive.notes import read_notes
from orchestrator.errors import ArchiveError
from orchestrator.model import Status
from orchestrator.report.grid import Grid
from orchestrator.report.phrases import STATUS_ORDER
from orchestrator.report.whole import gaps
from orchestrator.wording import tally, visible

_NOTE_SHOWN = 120


@dataclass(frozen=True)
class RunLine:
    """One run. `counts` are of what is here, and of one that nobody measures any more also of what is lost; `expected` is
    how many measurements the plan asks for, if known."""

    run_id: str
    sweep: str
    state: str
    started_at: str | None
    counts: dict[str, int]
    expected: int | None = None
    tags: tuple[str, ...] = ()
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """The fields that scripts may rely on; `tags` and `note` where somebody gave some."""
        names = ("run_id", "sweep", "state", "started_at", "counts")
        said = {"tags": list(self.tags), "note": self.note}
        return {name: getattr(self, name) for name in names} | {k: v for k, v in said.items() if v}


@dataclass(frozen=True)
class Listing:
    """Runs, newest first, and what in the archive is none or cannot be read."""

    runs: tuple[RunLine, ...]
    warnings: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The document of `runs --json`."""
        return {"runs": [run.as_json() for run in self.runs]}


def list_runs(archive: Archive) -> Listing:
    """Every run of the archive. A damaged one is a warning, never the end of the list."""
    folders, strays = archive.scan()
    runs, warnings = [], [f"{path} is no run" for path in strays]
    for folder in folders:
        try:
            try:
                line = _line(archive, folder)
            except FileNotFoundError:
                line = _line(archive, archive.find(folder.run_id))  # it was committed meanwhile
            runs.append(line)
            said = read_notes(archive, folder.run_id)
            runs[-1] = replace(line, tags=said.tags, note=said.note)
        except ArchiveError as error:
            warnings.append(str(error))
        except OSError as error:
            warnings.append(f"{folder.path}: {error.strerror}")
    return Listing(tuple(runs), tuple(map(archive.told, warnings)))


def runs_table(listing: Listing) -> Grid:
    """The list for a terminal; of an open run it says how far it is."""
    rows = []
    said = any(run.tags or run.note for run in listing.runs)
    last = "measurements, tags and note" if said else "measurements"
    for run in listing.runs:
        total = sum(run.counts.values())
        done = total - sum(run.counts.get(status, 0) for status in (Status.LOST, Status.CANCELLED))
        if run.state in ("running", "detached"):
            total = max(total, run.expected or 0)
        of = str(total) if done == total else f"{done} of {total}"
        counts = tally(run.counts, STATUS_ORDER)
        began = (run.started_at or "").replace("T", " ")[:16]
        row = (
            Text(visible(run.run_id)),
            Text(visible(run.sweep, 60)),
            Text(
                run.state, style={"running": "green", "detached": "yellow", "lost": "red"}.get(run.state, "")
            ),
            Text(visible(began)),
            Text("\n".join(filter(None, (f"{of}: {counts}" if counts else of, _said(run))))),
        )
        rows.append(row)
    return Grid(("run", "sweep", "state", "started (UTC)", last), rows, below={4: ""})


def _said(run: RunLine) -> str:
    tags = " ".join(f"#{tag}" for tag in run.tags)
    return visible(f"{tags} {run.note}".strip(), _NOTE_SHOWN)


def _line(archive: Archive, folder: RunFolder) -> RunLine:
    if folder.is_committed:
        document = read_outline(folder.run_json)
        counts, expected = document.counts, document.plan.expected
    else:
        archive.bring(folder)
        document = read_document(folder.run_json)
        fold = fold_run(folder, document)
        counts, expected = dict(fold.counts().statuses), known_total(document, fold)
        if archive.state(folder, document) == "lost":
            lost = len(gaps(document, fold, "lost"))
            counts |= {"lost": counts.get("lost", 0) + lost} if lost else {}
    return RunLine(
        run_id=folder.run_id,
        sweep=document.sweep.name,
        state=archive.state(folder, document),
        started_at=document.started_at,
        counts={str(status): number for status, number in counts.items()},
        expected=expected,
    )
