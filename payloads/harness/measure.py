"""One case: every backend alone first (compile, check), then interleaved rounds; each result is reported as it ends."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from functools import partial
from typing import Any, Dict, List, Mapping, Optional, Set

from . import accuracy, failures, gates, peaks, records, rounds, stats, verdicts
from . import trial as trials
from .declare import Backend, Call, Payload, Reported
from .device import Device
from .gang import SOLO, Gang
from .settings import Settings as ProcessSettings
from .trial import Settings, Trial


class Reporter(ABC):
    """Where phases and measurements go."""

    @abstractmethod
    def phase(self, backend: str, phase: str) -> None:
        """`backend` now enters `compile`, `check` or `measure`: if the process dies, it died there. `prepare` is of what all
        backends share, on this one's clock: whatever happens there is no backend's fault."""

    @abstractmethod
    def measurement(self, record: Dict[str, Any]) -> None:
        """One measurement is complete."""


class CaseRun:
    """The measuring of one case. `run()` returns whether the device still works afterwards."""

    def __init__(
        self,
        payload: Payload,
        item: Mapping[str, Any],
        device: Device,
        reporter: Reporter,
        crossed: Optional[Set[Any]] = None,
    ) -> None:
        self._payload = payload
        self._item = item
        self._device = device
        self._reporter = reporter
        self._crossed: Set[Any] = set() if crossed is None else crossed
        self._settings = Settings.of(item)
        self._accuracy: Mapping[str, Any] = item.get("accuracy") or {}
        self._healthy = True
        self._gang: Gang = device.gang if payload.collective else SOLO
        self._process = ProcessSettings()

    def run(self) -> bool:
        """Measure every backend of the item that is not in `done`. False when the device no longer computes: what was
        not reported then must be measured by another process."""
        done = set(self._item.get("done") or ())
        names = [name for name in self._item["backends"] if name not in done]
        backends = [backend for backend in map(self._admit, names) if backend is not None]
        if backends:
            self._measure_all(backends)
        self._device.release_memory()
        self._process.over()
        return self._healthy

    def _admit(self, name: str) -> Optional[Backend]:
        """The backend, if it can run here; else its measurement is reported at once."""
        backend = self._payload.backends.get(name)
        if backend is None:
            known = ", ".join(self._payload.backends)
            reason = "{} has no backend {!r}; it has {}".format(self._payload.name, name, known)
            self._report(name, "error", reason)
            return None
        causes = gates.refusals(backend.needs, self._device)
        if causes:
            self._report(name, "unsupported", "; ".join(causes))
            return None
        return backend

    def _measure_all(self, backends: List[Backend]) -> None:
        self._reporter.phase(backends[0].name, "prepare")
        try:
            problem = self._gang.together(lambda: self._payload.prepare(self._item["params"], self._device))
        except Exception as error:  # noqa: BLE001 - a payload's own code: its failure is the outcome of every backend
            for backend in backends:
                self._fail(backend, error)
            return
        self._process.prepared()
        ready: List[Trial] = []
        for backend in backends:
            trial = self._try_alone(backend, problem)
            if not self._healthy:
                break
            if trial is not None:
                ready.append(trial)
        if self._healthy:
            self._run_rounds(ready)
        ready.clear()
        if self._healthy:
            self._close(problem)

    def _close(self, problem: Any) -> None:
        close = getattr(problem, "close", None)
        if close is None:
            return
        try:
            close()
        except Exception as error:  # noqa: BLE001 - a payload's own code: what it could not free goes with the process
            failures.log(error, "closing {}".format(self._item.get("label")))
            self._healthy = False

    def _try_alone(self, backend: Backend, problem: Any) -> Optional[Trial]:
        """A correct trial with its timer, or None when its measurement is already reported."""
        self._reporter.phase(backend.name, "compile")
        started = time.perf_counter()
        try:
            with self._process.of(backend.name):
                trial = self._prepared(backend, problem, started)
        except Exception as error:  # noqa: BLE001 - the boundary to a library's code: its failure is this backend's outcome
            self._fail(backend, error)
            return None
        return trial

    def _prepared(self, backend: Backend, problem: Any, started: float) -> Optional[Trial]:
        """`_try_alone`, which reports what this raises."""
        gang = self._gang
        built = gang.together(lambda: backend.build(problem))
        if isinstance(built, Reported):
            self._report_own(backend, built)
            return None
        if not isinstance(built, Call):
            raise TypeError("the backend gave {}, no Call".format(type(built).__name__))
        fault = built.faults()
        if fault is not None:
            raise TypeError(fault)
        trial = Trial(backend, built, self._device, gang, neutral=self._process.neutral)
        output = gang.together(lambda: trials.compile_call(trial, started))
        self._reporter.phase(backend.name, "check")
        objection = gang.together(partial(trials.check, trial, output, self._accuracy))
        del output
        objection = gang.first_objection(objection)
        if objection is not None:
            self._report_incorrect(trial, objection)
            return None
        gang.together(lambda: trials.prepare_timer(trial, self._settings, self._accuracy, self._crossed))
        return trial

    def _run_rounds(self, ready: List[Trial]) -> None:
        by_name = {trial.backend.name: trial for trial in ready}
        contenders = [
            rounds.Contender(trial.backend.name, trial.timer, partial(self._process.of, trial.backend.name))
            for trial in ready
            if trial.timer is not None
        ]

        def finished(contender: rounds.Contender) -> bool:
            return self._finish(by_name[contender.name], contender) or stand(contender)

        def failed(contender: rounds.Contender, error: Exception) -> bool:
            self._fail(by_name[contender.name].backend, error)
            return self._healthy or stand(contender)

        def stand(but: rounds.Contender) -> bool:
            # The device is gone. The others' samples were taken while it was well: they stand.
            for other in contenders:
                if other is not but and not other.done and other.samples:
                    self._reporter.measurement(self._ok_record(by_name[other.name], other))
            return False

        rounds.run(
            contenders,
            self._settings,
            announce=lambda contender: self._reporter.phase(contender.name, "measure"),
            finished=finished,
            failed=failed,
            gang=self._gang,
        )

    def _finish(self, trial: Trial, contender: rounds.Contender) -> bool:
        """Report a backend that had its turns, if it still computes what it should; whether the device works."""
        gang = self._gang
        try:
            with self._process.of(trial.backend.name):
                objection = gang.together(lambda: trials.recheck(trial, self._accuracy))
            objection = gang.first_objection(objection)
            record = None
            if objection is None:
                record = gang.together(lambda: self._ok_record(trial, contender))
        except Exception as error:  # noqa: BLE001 - the boundary to a library's code: its failure is this backend's outcome
            self._fail(trial.backend, error)
            return self._healthy
        if record is not None:
            self._reporter.measurement(record)
        else:
            self._report_incorrect(trial, str(objection))
        return True

    def _ok_record(self, trial: Trial, contender: rounds.Contender) -> Dict[str, Any]:
        samples = contender.samples
        ordered = sorted(samples)
        median_us = stats.quantile(ordered, 0.5)
        rel_error = stats.relative_error(samples)
        kept = stats.thin(samples)
        extra, own = records.apart(trial.extra, self._device.gang.size)
        extra["round_medians_us"] = contender.round_medians
        if len(kept) < len(samples):
            extra["samples_kept"] = len(kept)
        timing = {
            "timer": contender.timer.name,
            "cache": trial.cache,
            "median_us": median_us,
            "p20_us": stats.quantile(ordered, 0.2),
            "p80_us": stats.quantile(ordered, 0.8),
            "rel_error": rel_error,
            "samples": len(samples),
            "calls_per_sample": contender.timer.calls_per_sample,
            "compile_s": trial.compile_s,
            "hot_median_us": trial.hot_median_us,
            "host_us": trial.host_us if trial.on_gpu else median_us,
        }
        call = trial.call
        name = self._device.name if trial.on_gpu else "cpu"
        found = peaks.metrics(median_us, name, call.flops, call.bytes_moved, call.precision)
        metrics: Dict[str, Any] = {**own, **found}
        # Caches hold what hot calls read, and what is written after an eviction.
        from_memory = contender.timer.name == "graph" and trial.cache == "cold"
        beyond = verdicts.beyond_peak(metrics, from_memory and "evicted_each_pass" not in trial.extra)
        if beyond is not None:
            trial.notes.append(beyond)
        verdict, reasons = verdicts.judge(
            len(samples),
            rel_error,
            self._settings.target_rel_error,
            stats.spread(contender.round_medians),
            trial.disagreement,
            beyond is not None,
        )
        if call.metrics is not None:
            metrics.update(records.mapping("Call.metrics", call.metrics(median_us)))
        if "peak_fraction" in metrics or "bandwidth_fraction" in metrics:
            extra["peak_source"] = peaks.SOURCE
        changed = self._process.changed(trial.backend.name)
        if changed:
            extra["settings_of_its_own"] = changed
        return records.measurement(
            trial.backend.name,
            "ok",
            "; ".join(trial.notes) or None,
            resolved_backend=call.resolved or trial.backend.name,
            verdict=verdict,
            reasons=reasons,
            timing=timing,
            samples_us=kept,
            metrics=metrics,
            extra=extra,
            accuracy=trial.accuracy_record,
        )

    def _report_incorrect(self, trial: Trial, objection: str) -> None:
        """A wrong result has no verdict and no time: nobody shall compare its speed."""
        extra, own = records.apart(trial.extra, self._device.gang.size)
        self._report(
            trial.backend.name,
            "incorrect",
            objection,
            resolved_backend=trial.call.resolved or trial.backend.name,
            metrics=own,
            extra=extra,
            accuracy=trial.accuracy_record,
        )

    def _report_own(self, backend: Backend, reported: Reported) -> None:
        extra, own = records.apart(reported.extra, self._device.gang.size)
        samples = records.reported_times(reported.samples_us)
        objection = accuracy.objection_to_reported(reported.accuracy, self._accuracy)
        if objection is not None:
            self._report(
                backend.name,
                "incorrect",
                objection,
                resolved_backend=backend.name,
                metrics=own,
                extra=extra,
                accuracy=reported.accuracy,
            )
            return
        verdict = "valid"
        reasons: List[str] = []
        timing: Optional[Dict[str, Any]] = None
        if samples:
            ordered = sorted(samples)
            rel_error = stats.relative_error(samples)
            verdict, reasons = verdicts.judge(len(samples), rel_error, self._settings.target_rel_error, 0.0)
            timing = {
                "timer": "payload",
                "cache": None,
                "median_us": stats.quantile(ordered, 0.5),
                "p20_us": stats.quantile(ordered, 0.2),
                "p80_us": stats.quantile(ordered, 0.8),
                "rel_error": rel_error,
                "samples": len(samples),
            }
        note = "timed by the payload itself" if samples and self._device.is_gpu else None
        self._report(
            backend.name,
            "ok",
            note,
            resolved_backend=backend.name,
            verdict=verdict,
            reasons=reasons,
            timing=timing,
            samples_us=stats.thin(samples) if samples else None,
            metrics={**own, **(reported.metrics or {})},
            extra=extra,
            accuracy=reported.accuracy,
        )

    def _fail(self, backend: Backend, error: Exception) -> None:
        """Report the exception as the backend's outcome, and find out whether the device survived it."""
        status, reason = failures.classify(error, backend.needs.libraries)
        if status != "unsupported":
            failures.log(error, "{} {}".format(self._item.get("label"), backend.name))
        error.__traceback__ = None  # its frames hold the backend's tensors
        if status == "oom":
            self._device.release_memory()
        if self._healthy and not all(self._gang.every(self._device.alive())):
            print("farbench: the device no longer computes in this process", file=sys.stderr)
            self._healthy = False
            if status != "unsupported":
                status, reason = "crashed", "it broke the CUDA context: {}".format(reason)
        self._report(backend.name, status, reason)

    def _report(self, backend: str, status: str, reason: Optional[str] = None, **fields: Any) -> None:
        self._reporter.measurement(records.measurement(backend, status, reason, **fields))
