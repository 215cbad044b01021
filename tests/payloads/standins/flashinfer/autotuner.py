"""The tuner's interface: `autotune(True)` profiles, later calls take what it found, others fall back to tactic -1.

As in the real one a size is looked up under the bucket it is rounded down to: a power of two, unless the surrounding
`autotune` names other buckets.
"""

import contextlib


class CutlassFp4GemmRunner:
    pass


class AutoTuner:
    _instance = None

    def __init__(self):
        self.tuning = False
        self.buckets = None
        self.tuned = set()

    @classmethod
    def get(cls):
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance

    def _bucket(self, rows):
        if self.buckets is not None:
            return max((b for b in self.buckets if b <= rows), default=min(self.buckets))
        return 1 << (rows.bit_length() - 1)

    def choose_one(self, custom_op, runners, tuning_config, inputs, **kwargs):
        key = (custom_op, runners[0], self._bucket(inputs[0].shape[0]))
        if self.tuning:
            self.tuned.add(key)
        return CutlassFp4GemmRunner(), 7 if key in self.tuned else -1


@contextlib.contextmanager
def autotune(
    tune_mode=True,
    cache=None,
    tuning_buckets=None,
    round_up=None,
    skip_ops=None,
    cuda_graph_profile_replays=None,
    tie_tolerance=None,
):
    tuner = AutoTuner.get()
    before = tuner.tuning, tuner.buckets
    tuner.tuning, tuner.buckets = tune_mode, tuning_buckets
    try:
        yield
    finally:
        tuner.tuning, tuner.buckets = before
