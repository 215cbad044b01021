"""The A/A noise of a place and a subject: from earlier runs where there are some, else from what is usual.

What two runs differ by when nothing was changed has two parts: what their samples show (`statistics.median_draws`),
and what no sample of one run can show, because all of a run share the day's clocks, memory layout and neighbours. The
second part is what is found here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log, sqrt

from orchestrator.compare.values import EXPLAINED, PastTime, Subject, Timed
from orchestrator.statistics import Noise, Spread, moderate, spread, typical_scale, worst_case


@dataclass(frozen=True)
class Usual:
    """Noise of a time at a place where little is known, and (as a log ratio) how far off a freak run may be."""

    noise: Noise
    freak: float


USUAL = {
    "graph": Usual(Noise(0.01**2, 10), 0.03),
    "cupti": Usual(Noise(0.01**2, 10), 0.03),
    "events": Usual(Noise(0.02**2, 4), 0.30),
    "host": Usual(Noise(0.05**2, 4), 0.45),
}
"""By timer. Of FP8 and BF16 GEMMs on an H200, the same twice in two processes: graphs of calls differed by 0.8% in the
median and 2.8% at most; events by 2.6% in the median, with a tail beyond 50%. A CPU that is shared gives a third of its
time away while a neighbour is awake."""
USUAL_OF_PROGRAMS = Usual(Noise(0.10**2, 4), 0.60)
"""How a program took the time that it prints is not known."""
LEAP = 0.08
"""A quiet host leaps by this from run to run, too, and may leap there in one run and back in the other."""
FREAK_OF_WITHIN = 2.0
LEAST_NOISE = 0.02
NOISE_OF_WITHIN = 0.5
"""What disturbs a CPU for a whole run also comes and goes in it. In the runs of tests/compare/data, of 1,600 pairs whose
samples lay within 10% (the 10th to the 90th percentile, of the looser side), none differed by more than 20%, and
99% by less than 6%; with wider samples up to 4.7 times. So a freak is no more than a leap and twice that spread, and the
usual noise 2% and half of it, where that is less than what is usual for the timer."""
TIGHT = 0.05
"""Samples that lie so close together were not disturbed."""
OF_DEVICES = frozenset({"graph", "cupti", "events"})
"""Timers for which that is not known."""
SMALLEST_SCALE = 5e-4
"""Clocks have a resolution: runs that agree to the last digit do not prove that there is no noise."""
DEVICES_DIFFER = 0.02
"""Standard deviation between two devices of one model: manufacture, cooling and power limits."""
FEWEST_RUNS = 3
FREAK = 5.0
"""A deviation of so many scales is a freak."""
RUNS_THAT_SHOW_FREAKS = 20
"""In fewer runs, that none was a freak says little: the usual one is still reckoned with."""
RARE = 0.005
"""Freaks that are expected in fewer comparisons than this need not be reckoned with."""


@dataclass(frozen=True)
class Floor:
    """The noise of a time at a place, and (as a log ratio) how far off a freak run there must be reckoned to be.

    Nothing but a change is further off than `plausible`, beside the usual noise. `source` as in `Pair.noise`, `runs`
    how many earlier runs it is from."""

    noise: Noise
    worst_case: float
    plausible: float
    source: str
    runs: int


class NoiseOfHosts:
    """What the earlier runs say about noise. They must come in the order in which they were measured.

    Those that telemetry explains (throttled, contended) say nothing about it: it would see the same again."""

    def __init__(self, past: Iterable[PastTime]) -> None:
        everything = [time for time in past if time.median_us > 0 and not EXPLAINED & set(time.reasons)]
        valid = [time for time in everything if time.is_valid]
        self._times: dict[Subject, list[float]] = {}
        for time in everything:
            self._times.setdefault(time.subject, []).append(time.median_us)
        self._all = _Spreads(everything)
        self._valid = self._all if len(valid) == len(everything) else _Spreads(valid)

    def times(self, subject: Subject) -> Sequence[float]:
        """The earlier times of a subject, wherever it was measured: they show the step of its clock."""
        return self._times.get(subject, ())

    def of(
        self,
        subject: Subject,
        payload: str,
        side: Timed,
        *,
        trusted: bool,
        tests: int,
        within: float | None = None,
    ) -> Floor:
        """The noise of a subject at the side's place, in a comparison of `tests` pairs.

        `trusted`: both times of the pair are valid, so that earlier ones that were not say nothing about its usual
        noise. They do say what may go wrong at the host, and what shows in some samples hides from others.
        `within` is how far apart the samples of the pair lie, as a log ratio, where there are enough to tell.
        """
        known = self._valid if trusted else self._all
        own, pool = known.own(subject, side.host), known.pool(side.host, subject.timer, payload)
        freaks = self._all.pool(side.host, subject.timer, payload)
        usual, usual_freak = pool.usual, freaks.usual_freak
        plausible = usual_freak
        seen = freaks.freaks
        if within is not None and trusted and subject.timer not in OF_DEVICES:
            plausible = min(plausible, LEAP + FREAK_OF_WITHIN * within)
            usual_freak = min(usual_freak, max(2 * LEAP, plausible))
            if within <= TIGHT and freaks.runs < RUNS_THAT_SHOW_FREAKS:
                seen = freaks.recurring
            if not pool.is_of_host:
                scale = LEAST_NOISE + NOISE_OF_WITHIN * within
                usual = Noise(min(usual.variance, scale**2), usual.df)
        return Floor(
            noise=moderate(own, usual),
            worst_case=freaks.worst_of(tests, usual_freak, seen, trusted=trusted),
            plausible=max(LEAP, plausible, worst_case(seen)),
            source="history" if own else "host" if pool.runs else "samples",
            runs=own.runs if own else 0,
        )


@dataclass(frozen=True)
class _Pool:
    """What is known of a host by all that was measured there with one payload and timer: the usual noise of a
    measurement, and the freak deviations among `seen` ones; `recurring` are those of measurements that had several: a
    single one, of a run that nobody can ask any more, may also be of a program that was changed for that run. `runs` is of the measurement with the longest history.
    `is_of_host` is false where too little was measured there, so that the noise is what is usual for the timer."""

    usual: Noise
    usual_freak: float
    is_of_host: bool = False
    freaks: tuple[float, ...] = ()
    recurring: tuple[float, ...] = ()
    seen: int = 0
    runs: int = 0

    def worst_of(self, tests: int, usual_freak: float, freaks: Sequence[float], *, trusted: bool) -> float:
        """How large a freak must be reckoned with when so many pairs are compared, and these are known."""
        usual = 0.0 if trusted and self.runs >= RUNS_THAT_SHOW_FREAKS else usual_freak
        expected = 2 * tests * len(freaks) / self.seen if self.seen else 0.0
        return max(usual, worst_case(freaks) if expected > RARE else 0.0)


class _Spreads:
    def __init__(self, past: Iterable[PastTime]) -> None:
        series: dict[tuple[str, str, Subject], dict[str, list[float]]] = {}
        for time in past:
            by_device = series.setdefault((time.host, time.payload, time.subject), {})
            by_device.setdefault(time.device_uuid, []).append(log(time.median_us))
        found = {key: spread(by_device.values()) for key, by_device in series.items()}
        enough = {key: one for key, one in found.items() if one and one.runs >= FEWEST_RUNS}
        self._own = {(host, subject): one for (host, _, subject), one in enough.items()}
        self._alike: dict[tuple[str, str, str], list[Spread]] = {}
        for (host, payload, subject), one in enough.items():
            self._alike.setdefault((host, subject.timer, payload), []).append(one)
        self._pools: dict[tuple[str, str, str], _Pool] = {}

    def own(self, subject: Subject, host: str) -> Spread | None:
        return self._own.get((host, subject))

    def pool(self, host: str, timer: str, payload: str) -> _Pool:
        key = (host, timer, payload)
        if key not in self._pools:
            self._pools[key] = _pool(self._alike.get(key, ()), USUAL.get(timer, USUAL_OF_PROGRAMS))
        return self._pools[key]


def _pool(spreads: Sequence[Spread], prior: Usual) -> _Pool:
    scale = typical_scale(spreads)
    usual = prior.noise if scale is None else Noise(max(scale, SMALLEST_SCALE) ** 2, prior.noise.df)
    freaks: list[float] = []
    recurring: list[float] = []
    for one in spreads:
        limit = FREAK * sqrt(moderate(one, usual).variance)
        beyond = [deviation for deviation in one.deviations if abs(deviation) > limit]
        freaks += beyond
        recurring += beyond if len(beyond) > 1 else []
    runs = [one.runs for one in spreads]
    return _Pool(
        usual,
        prior.freak,
        scale is not None,
        tuple(freaks),
        tuple(recurring),
        sum(runs),
        max(runs, default=0),
    )
