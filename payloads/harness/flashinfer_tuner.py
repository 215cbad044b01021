"""flashinfer's autotuner: run it outside the timed window, and find out what the timed calls really use.

An untuned call takes the library's fallback (tactic -1), which can be far from the best; and tuning is silently without
effect for some kernels. So the tactic of a call is looked up after tuning, never assumed.
"""

from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, List

UNTUNED = "-1"


OWN_HEURISTICS = frozenset(("cublas", "cublaslt", "cudnn"))
"""Kernels whose library picks a good one by itself. flashinfer's tuner has nothing to choose among for some of them, and
takes seconds a shape to try every plan of the others, which no eager caller does."""


def tune(run_once: Callable[[], Any], rows: int) -> None:
    """Profile the kernels of one call with `rows` rows (the size that flashinfer tunes over)."""
    import flashinfer

    # Profiling these rows alone is quick, but serves later calls only if they are one of the tuner's own buckets;
    # otherwise those fall back, and all buckets up to `rows` have to be profiled.
    if "tuning_buckets" in inspect.signature(flashinfer.autotune).parameters:
        with flashinfer.autotune(True, tuning_buckets=(rows,)):
            run_once()
            best = tactic(run_once).get("tactic", UNTUNED)
        # The library's own choice may be the best there is, or the only one: nothing was found, then.
        if best == UNTUNED or tactic(run_once).get("tactic") != UNTUNED:
            return
    with flashinfer.autotune(True):
        run_once()


def tactic(run_once: Callable[[], Any]) -> Dict[str, str]:
    """Which kernel the tuner picks for a call: `runner` and `tactic` ("-1": the library's fallback). Empty when the call
    does not ask the tuner."""
    from flashinfer.autotuner import AutoTuner

    tuner = AutoTuner.get()
    choose = tuner.choose_one
    seen: List[Any] = []

    def watch(*args: Any, **kwargs: Any) -> Any:
        seen.append(choose(*args, **kwargs))
        return seen[-1]

    tuner.choose_one = watch
    try:
        run_once()
    finally:
        del tuner.choose_one
    return {"runner": type(seen[-1][0]).__name__, "tactic": str(seen[-1][1])} if seen else {}
