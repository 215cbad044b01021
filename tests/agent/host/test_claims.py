"""Which devices a gang waits for, and which it takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent.claims import Claims
from orchestrator.agent.leases import Leases

FOUR = [{"uuid": f"GPU-{name}", "kind": "gpu"} for name in "abcd"]


class Told:
    """A recorder and its journal: what the run says."""

    def __init__(self) -> None:
        self.journal = self
        self.waits: list[str] = []

    def append(self, kind: str, **fields: Any) -> None:
        assert kind == "lease_wait"
        self.waits.append(f"{fields['device']} {fields['holder']['run_id']}")

    def problem(self, message: str) -> None:
        raise AssertionError(message)


@pytest.fixture
def leases(tmp_path: Path) -> Callable[[str], Leases]:
    return lambda run_id: Leases(str(tmp_path / "work"), str(tmp_path / "gpus"), run_id)


def names(devices: list[dict[str, Any]]) -> str:
    return "".join(device["uuid"][-1] for device in devices)


def test_a_gang_does_not_wait_for_devices_in_use_when_as_many_others_become_idle(
    leases: Callable[[str], Leases],
) -> None:
    others = leases("other").try_claim(["GPU-a", "GPU-b"])
    assert others is not None
    told = Told()
    claims = Claims(leases("ours"), told)  # type: ignore[arg-type]
    waiting = claims.choose(FOUR[:2], 2, 0.0)  # our own crews are on the rest
    assert names(waiting) == "ab"
    assert claims.claim(waiting, 0.0) is None
    assert told.waits == ["GPU-a other", "GPU-b other"]
    again = claims.next_try(0.0)
    assert names(claims.choose(FOUR[:3], 2, again)) == "ab"  # a single idle one is not enough
    chosen = claims.choose(FOUR, 2, again)
    assert names(chosen) == "cd"
    gang = claims.claim(chosen, again)
    assert gang is not None
    # It waits for nothing any more, so what the other run frees may go to anybody.
    others.release()
    third = leases("third").try_claim(["GPU-a", "GPU-b"])
    assert third is not None
    third.release()
    gang.release()


def test_a_gang_that_overlaps_what_it_waited_for_gets_its_devices_at_the_next_try(
    leases: Callable[[str], Leases],
) -> None:
    others = leases("other").try_claim(["GPU-a"])
    assert others is not None
    claims = Claims(leases("ours"), Told())  # type: ignore[arg-type]
    assert claims.claim(claims.choose(FOUR[:2], 2, 0.0), 0.0) is None
    now, gang = claims.next_try(0.0), None
    chosen = claims.choose(FOUR[:3], 2, now)
    assert names(chosen) == "bc"
    for _ in range(3):
        gang = gang or claims.claim(claims.choose(FOUR[:3], 2, now), now)
        now += min(claims.next_try(now), 1.0)
    assert gang is not None
    assert gang.uuids == ("GPU-b", "GPU-c")
    gang.release()
    others.release()


def test_gangs_of_two_models_keep_their_places_while_both_wait(leases: Callable[[str], Leases]) -> None:
    h200 = [{"uuid": f"GPU-{name}", "kind": "gpu", "name": "H200"} for name in "ab"]
    b200 = [{"uuid": f"GPU-{name}", "kind": "gpu", "name": "B200"} for name in "cd"]
    others = leases("other").try_claim([device["uuid"] for device in (*h200, *b200)])
    assert others is not None
    claims, later = Claims(leases("ours"), Told()), leases("later")  # type: ignore[arg-type]

    def attempt(now: float) -> list[str]:
        got = []
        for devices in (h200, b200):
            if gang := claims.claim(claims.choose(devices, 2, now), now):
                got.append("".join(uuid[-1] for uuid in gang.uuids))
                gang.release()
        claims.end_round()
        return got

    assert attempt(0.0) == []
    for devices in (h200, b200):
        later.reserve([device["uuid"] for device in devices], gang=devices[0]["name"])
    assert attempt(1.0) == attempt(2.0) == []
    others.release()
    for devices in (h200, b200):
        assert later.try_claim([device["uuid"] for device in devices]) is None
    assert attempt(3.0) == ["ab", "cd"]


def test_a_gang_that_is_no_longer_wanted_holds_up_nobody(leases: Callable[[str], Leases]) -> None:
    others = leases("other").try_claim(["GPU-a"])
    assert others is not None
    claims, later = Claims(leases("ours"), Told()), leases("later")  # type: ignore[arg-type]
    assert claims.claim(claims.choose(FOUR[:2], 2, 0.0), 0.0) is None
    claims.end_round()
    assert later.try_claim(["GPU-b"]) is None
    claims.end_round()  # nobody asked for the gang in this one
    single = later.try_claim(["GPU-b"])
    assert single is not None
    single.release()
    others.release()


def test_why_nothing_was_to_be_had_names_a_holder_once_however_many_devices_it_has(
    leases: Callable[[str], Leases],
) -> None:
    eight = [{"uuid": f"GPU-{n}", "kind": "gpu"} for n in range(8)]
    others = leases("other").try_claim([device["uuid"] for device in eight[:7]])
    third = leases("third").try_claim(["GPU-7"])
    assert others is not None
    assert third is not None
    claims = Claims(leases("ours"), Told(), wait=False)  # type: ignore[arg-type]
    for device in eight:
        assert claims.claim([device], 0.0) is None
    told = claims.why_refused(eight)
    assert told.startswith(
        "every device is in use: GPU-0, GPU-1, GPU-2 and 4 more are held by run other of user "
    )
    assert told.count("run other") == 1
    assert "; GPU-7 is held by run third of user " in told
