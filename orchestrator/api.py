"""The Python API, for notebooks and scripts: what the command does, as functions and values.

    import orchestrator.api as farbench

    hosts = farbench.load_inventory("hosts.yaml")
    sweep = farbench.load_sweep("sweep.yaml", sets=["m=[16, 64]"])
    with farbench.run(sweep, hosts, hosts="local") as run:
        for measurement in run:                       # as they come in
            print(measurement.label, measurement.backend, measurement.status)
    frame = farbench.Archive("archive").results().pandas()

Refusals are `orchestrator.errors.FarbenchError`. Leaving a run's `with` block early detaches: the hosts go on.
"""

from __future__ import annotations

import importlib
import os
import queue
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from orchestrator import archive as storage
from orchestrator.errors import UsageError
from orchestrator.events import Fold
from orchestrator.inventory import Inventory, load_inventory, nodes_of, select
from orchestrator.model import Measurement
from orchestrator.plan import Plan, make_plan
from orchestrator.rendering import Catalogue
from orchestrator.run.ending import Outcome
from orchestrator.run.observer import HostView, Silent
from orchestrator.run.start import carry_out, prepare
from orchestrator.sweep import Sweep, load_sweep

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

    from orchestrator.compare import Comparison

__all__ = [
    "Archive",
    "Results",
    "Run",
    "compare",
    "load_inventory",
    "load_sweep",
    "plan",
    "report",
    "run",
]

RESULTS = "SELECT * FROM results ORDER BY run_id, payload, case_id, backend, host"
_LEAVE_S = 30.0


@dataclass(frozen=True)
class Results:
    """Rows of an archive. Each method reads them anew; `sql` is over the views of `farbench query`."""

    archive: storage.Archive
    sql: str = RESULTS

    def arrow(self) -> pyarrow.Table:
        """A pyarrow table (the extra `notebook`)."""
        _require("arrow", "pyarrow")
        from orchestrator.archive.query import ask

        return ask(self.archive, self.sql, lambda connection, _: _arrow(connection))

    def pandas(self) -> pandas.DataFrame:
        """A pandas frame (the extra `notebook`)."""
        _require("pandas", "pandas", "pyarrow")
        return self.arrow().to_pandas()

    def polars(self) -> polars.DataFrame:
        """A polars frame (the extra `notebook`)."""
        _require("polars", "polars", "pyarrow")
        import polars

        return polars.DataFrame(self.arrow())

    def rows(self) -> list[dict[str, Any]]:
        """Dictionaries; needs nothing but farbench."""
        from orchestrator.archive.query import query

        table = query(self.archive, self.sql)
        return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


class Archive(storage.Archive):
    """The runs under a folder, which need not exist until the first run begins."""

    def results(self, sql: str = RESULTS) -> Results:
        """Every measurement, or the answer to `sql`."""
        return Results(self, sql)


def plan(
    sweep: Sweep,
    inventory: Inventory,
    *,
    hosts: str | Sequence[str] = (),
    tags: str | Sequence[str] = (),
    only: str | Sequence[str] = (),
) -> Plan:
    """What `sweep` comes to on the hosts named, tagged, or else asked for by the sweep. Connects to nothing."""
    chosen = nodes_of(select(inventory, names=_several(hosts), tags=_several(tags), wanted=sweep.hosts))
    return make_plan(sweep, chosen, _several(only), Catalogue.default(Path.cwd()))


def run(
    sweep: Sweep,
    inventory: Inventory,
    *,
    hosts: str | Sequence[str] = (),
    tags: str | Sequence[str] = (),
    only: str | Sequence[str] = (),
    archive: str | Path | storage.Archive = "archive",
    on_measurement: Callable[[Measurement], None] | None = None,
    on_host: Callable[[HostView], None] | None = None,
) -> Run:
    """Begin to measure a sweep; the run is under way when this returns. The callbacks are called on another thread.

    Everything is checked and rendered first. Raises what the command ends with: `FileError`, `UsageError`, `NothingToDo`.
    """
    kept = _kept(archive)
    made = plan(sweep, inventory, hosts=hosts, tags=tags, only=only)
    return Run(made, kept, on_measurement, on_host)


class Run:
    """A run under way: iterate over its measurements as they come in, then ask for its `outcome`."""

    def __init__(
        self,
        plan: Plan,
        archive: storage.Archive,
        on_measurement: Callable[[Measurement], None] | None,
        on_host: Callable[[HostView], None] | None,
    ) -> None:
        self.archive = archive
        self._arrived: queue.SimpleQueue[Measurement | None] = queue.SimpleQueue()
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None
        self._leave = threading.Event()
        self._teller = _Teller(self._arrived, self._leave, on_measurement, on_host)
        self._prepared = prepare(plan, archive, environ=os.environ, argv=sys.argv)
        self.run_id: str = self._prepared.run.run_id
        """The run's id in the archive."""
        self._thread = threading.Thread(target=self._work, name=f"run {self.run_id}", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Measurement]:
        """The measurements, each once, as they come in. Raises what ended the run, if it was not its end."""
        while (measurement := self._arrived.get()) is not None:
            yield measurement
        self._arrived.put(None)  # whoever iterates again comes to the end at once
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.detach()

    @property
    def outcome(self) -> Outcome:
        """How the run ended: its state, counts, hosts. Waits for the end."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._outcome is not None
        return self._outcome

    def detach(self) -> None:
        """Stop following; the hosts go on, and `farbench attach` comes back. Does nothing after the end."""
        self._leave.set()
        self._thread.join(_LEAVE_S)

    def _work(self) -> None:
        from orchestrator.transport.open import Connections

        try:
            with Connections(environ=os.environ) as connections:
                self._outcome = carry_out(
                    self._prepared, open_transport=connections.transport, observer=self._teller
                )
        except _Left:
            self._error = UsageError(
                f"run {self.run_id} was left before its end; `farbench attach` follows it again"
            )
        except BaseException as error:  # noqa: BLE001 - raised again where the run is iterated or asked
            self._error = error
        finally:
            self._arrived.put(None)


class _Left(Exception):
    """The user has left the run."""


class _Teller(Silent):
    """Hands what the coordinator tells to the run's user, and leaves when asked to."""

    def __init__(
        self,
        arrived: queue.SimpleQueue[Measurement | None],
        leave: threading.Event,
        on_measurement: Callable[[Measurement], None] | None,
        on_host: Callable[[HostView], None] | None,
    ) -> None:
        self._arrived = arrived
        self._leave = leave
        self._on_measurement = on_measurement
        self._on_host = on_host

    def host_changed(self, view: HostView) -> None:
        """Told to the callback."""
        if self._on_host is not None:
            self._on_host(view)

    def measured(self, measurement: Measurement) -> None:
        """Told to the callback first, then to who iterates."""
        if self._on_measurement is not None:
            self._on_measurement(measurement)
        self._arrived.put(measurement)

    def tick(self, fold: Fold, expected: int) -> None:
        """The moment at which a run can be left."""
        if self._leave.is_set():
            raise _Left


def report(
    run: str = "latest", *, archive: str | Path | storage.Archive = "archive", format: str = "table"
) -> str:
    """A run's report as text: `table`, `markdown`, `csv`, `json` or `html`."""
    from orchestrator.report import build, render, to_text

    kept = _kept(archive)
    content = render(build(kept, kept.find(run)), format)
    return content if isinstance(content, str) else to_text(content)


def compare(
    a: str,
    b: str = "latest",
    *,
    archive: str | Path | storage.Archive = "archive",
    threshold: float | None = None,
) -> Comparison:
    """What changed from run `a` to run `b`. `threshold` is the least change of interest, as a fraction."""
    from orchestrator.compare import compare as compare_runs

    return compare_runs(_kept(archive), a, b, threshold=threshold)


def _several(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _require(method: str, *modules: str) -> None:
    """Refuse before a query runs for nothing. Raises `UsageError`, which says what to install."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise UsageError(
                f".{method}() needs {module}, which cannot be imported ({error}); "
                "pip install 'farbench[notebook]', or take .rows(), which needs nothing else"
            ) from None


def _arrow(connection: Any) -> pyarrow.Table:
    if not hasattr(connection, "to_arrow_table"):  # DuckDB 1
        return connection.fetch_arrow_table()
    with warnings.catch_warnings():
        # It recommends a call that would run the query a second time.
        warnings.filterwarnings("ignore", message="Arrow output on a DB-API result")
        return connection.to_arrow_table()


def _kept(archive: str | Path | storage.Archive) -> storage.Archive:
    return archive if isinstance(archive, storage.Archive) else Archive(archive)
