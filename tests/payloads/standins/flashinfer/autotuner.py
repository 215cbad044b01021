"""The tuner's interface: `autotune(True)` profiles, later calls take what it found, others fall back to tactic -1."""

import contextlib


class CutlassFp4GemmRunner:
    pass


class AutoTuner:
    _instance = None

    def __init__(self):
        self.tuning = False
        self.tuned = set()

    @classmethod
    def get(cls):
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance

    def choose_one(self, custom_op, runners, tuning_config, inputs, **kwargs):
        key = (custom_op, runners[0], inputs[0].shape[0])
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
    before, tuner.tuning = tuner.tuning, tune_mode
    try:
        yield
    finally:
        tuner.tuning = before
