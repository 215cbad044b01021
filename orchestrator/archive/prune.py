"""Taking runs out of the archive: chosen by age, number, state or name, said first, and gone by one rename each."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from orchestrator.archive import files, incoming, notes
from orchestrator.archive.document import RunDocument, read_outline
from orchestrator.archive.paths import RunFolder
from orchestrator.archive.store import Archive
from orchestrator.errors import ArchiveError, UsageError
from orchestrator.yamlfile import suggestion

STATES = ("finished", "cancelled", "lost")
"""How a complete run has ended."""


@dataclass(frozen=True)
class Rules:
    """Which runs to remove: those that every rule given applies to. `keep` spares that many of the newest runs."""

    older_than_days: float | None = None
    keep: int | None = None
    states: Collection[str] = ()
    runs: Collection[str] = ()
    tagged_too: bool = False

    @property
    def are_given(self) -> bool:
        """Whether there is any rule; without one nothing is chosen."""
        return bool(self.states or self.runs) or self.older_than_days is not None or self.keep is not None


@dataclass(frozen=True)
class Candidate:
    """A run to be removed, its size on disk, and why."""

    folder: RunFolder
    bytes: int
    why: str


@dataclass(frozen=True)
class Choice:
    """What goes, and in words what stays although the rules apply to it."""

    candidates: tuple[Candidate, ...]
    spared: tuple[str, ...]


def choose(archive: Archive, rules: Rules, now: datetime) -> Choice:
    """What `rules` would remove. Open runs stay, whatever the rules say; so do tagged ones unless `tagged_too`.

    Raises `UsageError` when there is no rule or a state is none of a complete run, `ArchiveError` for a run that is named and does not exist."""
    if not rules.are_given:
        raise UsageError("say which runs: --older-than, --keep, --state, or the runs themselves")
    for state in rules.states:
        if state not in STATES:
            raise UsageError(
                f"--state {state}: a complete run is never that{suggestion(state, STATES)}; "
                f"there are: {', '.join(STATES)} (open runs are never removed)"
            )
    named = {archive.find(name).run_id for name in rules.runs}
    candidates, spared = [], []
    committed = 0
    for folder in archive.runs():
        committed += folder.is_committed
        if named and folder.run_id not in named:
            continue
        if not folder.is_committed:
            if folder.run_id in named:
                spared.append(f"{folder.run_id} is open: cancel or resume it first")
            continue
        try:
            why = _why(rules, read_outline(folder.run_json), committed, now)
            tags = notes.read_notes(archive, folder.run_id).tags
        except (ArchiveError, FileNotFoundError) as error:
            spared.append(f"{folder.run_id} stays: {error}")
            continue
        if why is None:
            continue
        if tags and not rules.tagged_too:
            spared.append(f"{folder.run_id} is tagged {', '.join(tags)}: it stays")
            continue
        candidates.append(Candidate(folder, _size(folder.path), why))
    return Choice(tuple(candidates), tuple(spared))


def remove(archive: Archive, candidates: Collection[Candidate]) -> int:
    """Remove runs and what was said of them; returns how many. Each is gone at once: a kill leaves it or removes it."""
    removed = 0
    with incoming.workshop(archive) as bin_:
        for candidate in candidates:
            files.make_folder(bin_.path / "runs")
            try:
                candidate.folder.path.rename(bin_.path / "runs" / candidate.folder.run_id)
            except FileNotFoundError:
                continue  # somebody else removed it
            notes.forget(archive, candidate.folder.run_id)
            removed += 1
            shutil.rmtree(bin_.path / "runs", ignore_errors=True)
    return removed


def _why(rules: Rules, document: RunDocument, place: int, now: datetime) -> str | None:
    """Why a run goes; None when it stays. `place` counts committed runs from the newest."""
    reasons = ["named"] if rules.runs else []
    if rules.keep is not None:
        if place <= rules.keep:
            return None
        reasons.append(f"not among the newest {rules.keep}")
    if rules.states:
        if document.state not in rules.states:
            return None
        reasons.append(document.state)
    if rules.older_than_days is not None:
        began = _moment(document.started_at)
        if began is None or now - began < timedelta(days=rules.older_than_days):
            return None  # a run that does not say when it began is never old
        reasons.append(f"{(now - began).days} days old")
    return ", ".join(reasons)


def _moment(text: str | None) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _size(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(place) / name).lstat().st_size
            except OSError:
                continue
    return total
