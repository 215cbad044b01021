"""The command `runs`: list them, say something about them, remove them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.console import out, print_json, say, show, warn
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.archive import Archive
    from orchestrator.archive.prune import Rules


def register(app: typer.Typer) -> None:
    """Add the command of this module to the application."""
    app.command()(runs)


def runs(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]…", help="Only these: `latest`, ids, or beginnings.", show_default=False
        ),
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", metavar="TAG", help="Only the runs with this tag.")
    ] = None,
    note: Annotated[
        str | None,
        typer.Option(
            "--note", metavar="TEXT", help="Note this about the runs named; an empty text removes it."
        ),
    ] = None,
    add_tag: Annotated[
        list[str] | None,
        typer.Option("--add-tag", metavar="TAG", help="Tag the runs named; may be repeated."),
    ] = None,
    remove_tag: Annotated[
        list[str] | None, typer.Option("--remove-tag", metavar="TAG", help="Take a tag from the runs named.")
    ] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove runs. Says first which; --yes removes them.")
    ] = False,
    older_than: Annotated[
        float | None,
        typer.Option("--older-than", metavar="DAYS", min=0, help="Prune what began before that."),
    ] = None,
    keep: Annotated[
        int | None, typer.Option("--keep", metavar="N", min=0, help="Prune all but the newest N.")
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="Prune what is `lost`, `cancelled` or `finished`."),
    ] = None,
    even_tagged: Annotated[
        bool, typer.Option("--even-tagged", help="Prune tagged runs too; otherwise a tag keeps a run.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Prune for good.")] = False,
    archive: options.ArchiveFolder = options.DEFAULT_ARCHIVE,
    as_json: options.Json = False,
) -> None:
    """List the runs of the archive, newest first; note something about them, tag them, remove them.

    A run is `running` (somebody follows it), `detached` (its hosts go on alone), `finished`, `cancelled` or `lost`.
    Notes and tags lie beside the run folders, which never change.

    Examples: `farbench runs latest --note "new driver" --add-tag golden`, `farbench runs --prune --older-than 90`
    """
    from orchestrator.archive import Archive
    from orchestrator.archive.prune import Rules

    kept = Archive(archive)
    rules = Rules(older_than, keep, tuple(state or ()), tuple(names or ()), even_tagged)
    says = note is not None or bool(add_tag or remove_tag)
    if prune:
        if says or tag:
            raise UsageError("--prune goes with --older-than, --keep, --state and --even-tagged")
        _prune(kept, rules, yes=yes, as_json=as_json)
        return
    if yes or even_tagged or state or keep is not None or older_than is not None:
        raise UsageError("--older-than, --keep, --state, --even-tagged and --yes go with --prune")
    if says:
        _annotate(kept, names or [], note, add_tag or [], remove_tag or [])
    _list(kept, names or [], tag or [], as_json=as_json)


def _list(kept: Archive, names: list[str], tags: list[str], *, as_json: bool) -> None:
    from dataclasses import replace

    from orchestrator.report import list_runs, runs_table

    wanted = {kept.find(name).run_id for name in names}
    listing = list_runs(kept)
    for warning in listing.warnings:
        warn(warning)
    shown = tuple(
        run for run in listing.runs if (not names or run.run_id in wanted) and set(tags) <= set(run.tags)
    )
    if as_json:
        print_json(replace(listing, runs=shown).as_json())
    elif shown:
        show(runs_table(replace(listing, runs=shown)))
    elif listing.runs:
        say(f"no run is tagged {' and '.join(tags)}")
    else:
        say(f"there is no run in the archive yet ({kept.name})")


def _annotate(kept: Archive, names: list[str], note: str | None, add: list[str], remove: list[str]) -> None:
    from orchestrator.archive.notes import annotate

    if not names:
        raise UsageError("say which run the note or tag is for: `latest`, an id, or the beginning of one")
    for run_id in dict.fromkeys(kept.find(name).run_id for name in names):
        annotate(kept, run_id, note=note, add=add, remove=remove)


def _prune(kept: Archive, rules: Rules, *, yes: bool, as_json: bool) -> None:
    from rich.text import Text

    from orchestrator.archive.prune import choose, remove
    from orchestrator.wording import visible

    choice = choose(kept, rules, datetime.now(UTC))
    removed = remove(kept, choice.candidates) if yes else 0
    if as_json:
        chosen = [{"run_id": c.folder.run_id, "bytes": c.bytes, "reason": c.why} for c in choice.candidates]
        print_json({"dry_run": not yes, "runs": chosen, "stay": list(choice.spared)})
        return
    for candidate in choice.candidates:
        line = f"{candidate.folder.run_id}  {candidate.bytes / 2**20:.1f} MiB  {candidate.why}"
        out().print(Text(visible(line)), soft_wrap=True)
    for stays in choice.spared:
        say(stays)
    mib = sum(candidate.bytes for candidate in choice.candidates) / 2**20
    if not choice.candidates:
        say("nothing to remove")
    elif yes:
        say(f"removed {removed} run{'' if removed == 1 else 's'}, {mib:.1f} MiB")
    else:
        say(f"{len(choice.candidates)} would go, {mib:.1f} MiB; --yes removes them for good")
