"""Claiming devices for crews without ever waiting for them, and telling whom we wait for."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from .leases import Lease, LeaseError, Leases
from .recorder import Recorder

TRY_EVERY_S = 0.5
DEVICES_NAMED = 3
"""Of one holder; where it has many more, their number says enough."""
Gang = Tuple[str, int]
"""A device model and a number of devices: what waits for them together has one place in the line."""


class Claims:
    """Tries for leases now and then; a gang that does not get its devices leaves a ticket, so nobody overtakes it."""

    def __init__(self, leases: Leases, recorder: Recorder, wait: bool = True) -> None:
        """Unless it is to `wait`, nothing is reserved either."""
        self.refused = False
        self._wait = wait
        self._leases = leases
        self._recorder = recorder
        self._next_try: Dict[Tuple[str, ...], float] = {}  # by what was claimed together
        self._told: Dict[str, Any] = {}
        self._problems: List[str] = []
        self._gangs: Dict[Gang, List[str]] = {}  # which devices each waits for, or has chosen
        self._asked: Set[Gang] = set()

    def claim(self, devices: List[Dict[str, Any]], now: float) -> Optional[Lease]:
        """The lease of all of these devices, or None: they are in use, or it was tried a moment ago."""
        uuids = [device["uuid"] for device in devices]
        kinds = [device["kind"] for device in devices]
        gang = _gang(devices)
        if not self._due(devices, now):
            return None
        try:
            lease = self._leases.try_claim(uuids, kinds)
            if lease is not None:
                self.refused = False
                for uuid in uuids:
                    self._told.pop(uuid, None)
                if len(uuids) > 1:
                    self._forget(gang)  # it may have waited for others
                return lease
            if len(uuids) > 1 and self._wait:
                self._leases.reserve(uuids, kinds, gang)
            self._tell_holders(devices)
        except LeaseError as error:
            if str(error) not in self._problems:
                self._problems.append(str(error))
                self._recorder.problem(f"cannot lease devices: {error}")
        self.refused = True
        self._next_try[tuple(uuids)] = now + TRY_EVERY_S
        return None

    def choose(self, free: List[Dict[str, Any]], count: int, now: float) -> List[Dict[str, Any]]:
        """`count` of our idle devices for a gang, those first that nobody else holds.

        While it waits they stay the same, unless as many others are to be had when it tries again."""
        gang = _gang(free, count)
        self._asked.add(gang)
        waiting = [each for each in free if each["uuid"] in self._gangs.get(gang, ())]
        if len(waiting) == count and not self._due(waiting, now):
            return waiting
        try:
            held = [each for each in free if self._leases.holder_of(each["uuid"], each["kind"]) is not None]
        except LeaseError:
            held = []
        if len(waiting) == count and len(free) - len(held) < count:
            return waiting
        chosen = sorted(free, key=lambda each: each in held)[:count]
        self._gangs[gang] = [each["uuid"] for each in chosen]
        return [each for each in free if each in chosen]

    def next_try(self, now: float) -> float:
        """Seconds until a claim that failed may be tried again; infinity when there is none."""
        return min((at - now for at in self._next_try.values() if at > now), default=float("inf"))

    def why_refused(self, devices: Sequence[Mapping[str, Any]]) -> str:
        """Which of `devices` cannot be had, and who has them, in words."""
        told = describe_all(self._told)
        some = told and any(device["uuid"] not in self._told for device in devices)
        which = "a device that is needed is in use" if some else "every device is in use"
        return f"{which}: {'; '.join(told or self._problems) or 'somebody else was faster'}"

    def end_round(self) -> None:
        """Gangs that nobody has chosen devices for since the last round wait no longer: they hold up nobody."""
        for gang in [gang for gang in self._gangs if gang not in self._asked]:
            self._forget(gang)
        self._asked.clear()

    def close(self) -> None:
        """Nothing more will be claimed."""
        for gang in list(self._gangs):
            self._forget(gang)

    def _forget(self, gang: Gang) -> None:
        self._gangs.pop(gang, None)
        self._leases.unreserve(gang)

    def _due(self, devices: List[Dict[str, Any]], now: float) -> bool:
        """Whether a claim of these was not refused just now."""
        return now >= self._next_try.get(tuple(device["uuid"] for device in devices), 0.0)

    def _tell_holders(self, devices: List[Dict[str, Any]]) -> None:
        for device in devices:
            holder = self._leases.holder_of(device["uuid"], device["kind"])
            if holder is not None and self._told.get(device["uuid"]) != holder:
                self._told[device["uuid"]] = holder
                self._recorder.journal.append("lease_wait", device=device["uuid"], holder=holder)


def _gang(devices: Sequence[Mapping[str, Any]], count: Optional[int] = None) -> Gang:
    return str(devices[0].get("name")), len(devices) if count is None else count


def describe_all(holders: Mapping[str, Mapping[str, Any]]) -> List[str]:
    """Which devices each holder has, in words; what a holder wrote may be missing or untrue."""
    held: Dict[Tuple[str, str], Dict[str, str]] = {}
    for uuid, holder in sorted(holders.items()):
        run = f"held by run {holder['run_id']}" if holder.get("run_id") else "held"
        user = f" of user {holder['user']}" if holder.get("user") else ""
        held.setdefault((run, user), {})[uuid] = str(holder.get("since") or "")
    told = []
    for (run, user), devices in held.items():
        names, first = list(devices), min(filter(None, devices.values()), default=None)
        text = ", ".join(names)
        if len(names) > DEVICES_NAMED + 1:
            text = f"{', '.join(names[:DEVICES_NAMED])} and {len(names) - DEVICES_NAMED} more"
        verb = "is" if len(names) == 1 else "are"
        told.append(f"{text} {verb} {run}{user}{f' since {first}' if first else ''}")
    return told
