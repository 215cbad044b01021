"""CUPTI's activity API with the signatures of cupti-python 13, over the kernels of `fakecuda`."""

import enum


class ActivityKind(enum.IntEnum):
    """The kinds that are used here, with CUPTI's numbers."""

    MEMCPY = 1
    MEMSET = 2
    KERNEL = 3
    DRIVER = 4
    RUNTIME = 5
    CONCURRENT_KERNEL = 10


class cuptiError(Exception):
    """As the bindings raise it."""


class _Record:
    def __init__(self, kind, name, start, end, correlation_id):
        self.kind = int(kind)
        self.start, self.end, self.correlation_id = start, end, correlation_id
        if kind == ActivityKind.CONCURRENT_KERNEL:
            self.name = name


_enabled = set()
_callbacks = []
_pending = []
other_subscriber = False


def record(kind, name, start_us, end_us, correlation_id):
    """Something ran on the device."""
    if kind in _enabled and _callbacks:
        _pending.append(_Record(kind, name, round(start_us * 1000), round(end_us * 1000), correlation_id))


def activity_register_callbacks(func_buffer_requested, func_buffer_completed):
    if other_subscriber:
        raise cuptiError("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED")
    size, most = func_buffer_requested()
    assert size >= 1 << 20
    assert most == 0
    _callbacks[:] = [func_buffer_requested, func_buffer_completed]


def activity_enable(kind: int):
    assert isinstance(kind, int)
    _enabled.add(ActivityKind(kind))


def attached():
    """Whether CUPTI has a hold of the process."""
    return bool(_callbacks or _enabled)


def finalize():
    assert not _enabled
    _callbacks.clear()


def activity_disable(kind: int):
    assert isinstance(kind, int)
    _enabled.discard(ActivityKind(kind))


def activity_flush_all(flag: int):
    assert flag in (0, 1)
    # In the order in which they ended on the device, not in that of their launches.
    found, _pending[:] = sorted(_pending, key=lambda record: record.end), []
    _callbacks[1](found)


def reset():
    """As in a fresh process."""
    global other_subscriber
    other_subscriber = False
    for found in (_callbacks, _pending):
        found.clear()
    _enabled.clear()
