"""Every call into torch.cuda that the harness makes. Nothing here runs on a machine without a GPU but `describe`."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Optional, Tuple

# torch.cuda._sleep counts SM clock cycles; at this many per microsecond no current GPU sleeps for less than asked.
CYCLES_PER_US = 3000

# Four were enough on an H200, and forty made no difference to eight.
USED_STREAMS = 8

_last_timed = [float("-inf")]
_settled: Dict[str, Tuple[Any, List[Any]]] = {}


def describe(index: int = 0) -> Optional[Tuple[str, Tuple[int, int]]]:
    """(name, capability) of a visible GPU, or None when there is none of this index."""
    import torch

    if not torch.cuda.is_available() or torch.cuda.device_count() <= index:
        return None
    return str(torch.cuda.get_device_name(index)), torch.cuda.get_device_capability(index)


def select(index: int) -> None:
    """Make a GPU the one that this process uses unless it says otherwise."""
    import torch

    torch.cuda.set_device(index)


def facts() -> Dict[str, Any]:
    """What the `ready` message tells of the GPU and its software."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    return {
        "device": str(properties.name),
        "compute_capability": "{}.{}".format(properties.major, properties.minor),
        "multiprocessors": int(properties.multi_processor_count),
        "memory_bytes": int(properties.total_memory),
        "l2_bytes": l2_bytes(),
        "runtime": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }


def runtime_version() -> Optional[str]:
    """The CUDA version that torch is built for."""
    import torch

    version: Optional[str] = torch.version.cuda
    return version


def l2_bytes() -> int:
    """Size of the L2 cache."""
    import torch

    return int(torch.cuda.get_device_properties(0).L2_cache_size)


def free_bytes() -> int:
    """Memory that could be allocated now: free on the device, and cached but unused by torch."""
    import torch

    free, _ = torch.cuda.mem_get_info()
    return int(free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated())


def settle(device: str) -> None:
    """Bring the process into the state in which it stays, by work on several streams.

    From the fourth stream that a process uses, its kernels start later after one another, also in graphs captured before
    (H200, driver 580: 0.4 µs each, which is 9% of a GEMM of two kernels at a decode shape). Each capture takes a stream:
    whoever is measured first would be faster. Programs that serve models have used more than four."""
    import torch

    if device not in _settled:
        streams = [torch.cuda.Stream() for _ in range(USED_STREAMS)]
        _settled[device] = (torch.zeros(1, device=device), streams)
    touched, streams = _settled[device]
    for stream in streams:
        with torch.cuda.stream(stream):
            touched.add_(1)
        torch.cuda.synchronize()


def stay_settled() -> None:
    """`settle` again, before a turn: a loop of a thousand launches on one stream was seen to undo it."""
    for device in _settled:
        settle(device)


def synchronize() -> None:
    """Wait for the device."""
    import torch

    torch.cuda.synchronize()


def alive(device: str) -> bool:
    """Whether a tiny kernel still gives the right answer: after a sticky error nothing does."""
    import torch

    try:
        total = torch.arange(32, device=device, dtype=torch.float32).sum().item()
        torch.cuda.synchronize()
    except RuntimeError:  # torch raises its CUDA errors as RuntimeError (AcceleratorError is one)
        return False
    return float(total) == 496.0


def release_memory() -> None:
    """Return cached blocks to the driver."""
    import torch

    torch.cuda.empty_cache()


def allocations() -> Tuple[int, int]:
    """(blocks asked of torch's allocator, segments it asked of the driver), both counted since the start."""
    import torch

    counters = torch.cuda.memory_stats()
    return int(counters.get("allocation.all.allocated", 0)), int(counters.get("segment.all.allocated", 0))


class Graph:
    """Work captured once and replayed; `outputs` are what the captured calls returned, kept alive with it."""

    def __init__(self, work: Callable[[], List[Any]]) -> None:
        """Capture `work` on a side stream. Raises whatever the capture raises."""
        import torch

        # Work that ran before the capture must not be waited for inside it; kernels load lazily, so warm up there too.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            work()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        # thread_local: a library's own threads may do as they like while this one captures.
        with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
            self.outputs = work()

    def replay(self) -> None:
        """Queue the captured work on the current stream."""
        self._graph.replay()


def time_each(
    work: Callable[[], None], count: int, before: Optional[Callable[[], None]] = None
) -> List[float]:
    """Microseconds between the events around each of `count` runs of `work`; `before` runs ahead of each, untimed.

    Everything is queued first and read afterwards, so the device never waits for the host in between
    (as long as `before` or the work itself keeps it busy for as long as queueing takes).
    """
    import torch

    events = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)
    ]
    for start, end in events:
        if before is not None:
            before()
        start.record()
        work()
        end.record()
    torch.cuda.synchronize()
    _last_timed[0] = time.perf_counter()
    return [float(start.elapsed_time(end)) * 1000.0 for start, end in events]


def idle_ms() -> float:
    """Milliseconds since the last timed work ended: for so long the device may have idled."""
    return (time.perf_counter() - _last_timed[0]) * 1000.0


def block(microseconds: float) -> None:
    """Queue a kernel that keeps the device busy for at least so long: the host can queue ahead meanwhile."""
    import torch

    torch.cuda._sleep(int(microseconds * CYCLES_PER_US))


class L2Flush:
    """Evicts the L2 cache by reading a buffer of twice its size: reading leaves no dirty lines for the next kernel to
    write back on its own time."""

    def __init__(self, device: str) -> None:
        import torch

        self._buffer = torch.ones(max(1, 2 * l2_bytes() // 4), dtype=torch.float32, device=device)
        self._sum = torch.zeros((), dtype=torch.float32, device=device)

    def __call__(self) -> None:
        """Queue the eviction."""
        import torch

        torch.sum(self._buffer, dim=0, out=self._sum)
