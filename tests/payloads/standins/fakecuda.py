"""A GPU that exists only as a clock: what `torch.cuda` offers a timer, on CPU tensors.

`launch(us, effect)` is a kernel: it takes `us` of device time and then has its effect. Inside a capture it is recorded
instead, and happens at each replay. One that `escapes` happens neither at capture nor at replay. One `elsewhere` is on
a stream that the current one does not wait for: it happens at once, events see nothing of it, and no capture records it.
Where `crowded_us` is set, kernels take so much longer once the process has used four streams, as on a real GPU.
"""

import contextlib
import time
import types

L2_BYTES = 1 << 16


class FakeGpu:
    def __init__(self):
        self.clock_us = 0.0
        self.capturing = None
        self.refuses_capture = False
        self.dead = False
        self.allocated = 0
        self.slept = 0
        self.launches = 0
        self.pending_us = 0.0
        self.streams = set()
        self.crowded_us = 0.0  # by which a kernel takes longer once work was done on four streams
        self.record = None  # where CUPTI's records go: (kind, name, start_us, end_us, number of the launch)

    def launch(self, us, effect, escapes=False, name="kernel", kind=10, elsewhere=False):
        self.launches += 1
        us += self.late_us()
        if self.dead:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if elsewhere:
            self.pending_us += us
            effect()
        elif self.capturing is None:
            self.clock_us += us
            if self.record is not None:
                self.record(kind, name, self.clock_us - us, self.clock_us, self.launches)
            effect()
        elif self.refuses_capture:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        elif not escapes:
            self.capturing.append((us - self.late_us(), effect))

    def late_us(self):
        return self.crowded_us if len(self.streams) >= 4 else 0.0

    def install(self, monkeypatch):
        import torch
        from harness import cuda

        monkeypatch.setattr(cuda, "_settled", {})  # every test is a process of its own
        gpu = self

        class Event:
            def __init__(self, enable_timing=False):
                assert enable_timing

            def record(self):
                self.at_us = gpu.clock_us

            def elapsed_time(self, end):
                return (end.at_us - self.at_us) / 1000.0

        class Stream:
            def wait_stream(self, other):
                assert isinstance(other, Stream)

        class CUDAGraph:
            def __init__(self):
                self.work = []

            def replay(self):
                if gpu.dead:
                    raise RuntimeError("CUDA error: an illegal memory access was encountered")
                for us, effect in self.work:
                    gpu.clock_us += us + gpu.late_us()
                    effect()

        @contextlib.contextmanager
        def graph(cuda_graph, pool=None, stream=None, capture_error_mode="global"):
            assert capture_error_mode in ("global", "thread_local", "relaxed")
            gpu.capturing = cuda_graph.work
            try:
                yield
            finally:
                gpu.capturing = None

        def stream(used):
            gpu.streams.add(used)
            return contextlib.nullcontext()

        def sleep(cycles):
            gpu.slept += 1
            gpu.launch(cycles / 2000.0, lambda: None, name="spin_kernel(long)")

        def synchronize():
            if gpu.dead:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            time.sleep(gpu.pending_us / 1e6)
            gpu.pending_us = 0.0

        properties = types.SimpleNamespace(L2_cache_size=L2_BYTES)
        for name, value in {
            "Event": Event,
            "Stream": Stream,
            "CUDAGraph": CUDAGraph,
            "graph": graph,
            "stream": stream,
            "current_stream": Stream,
            "synchronize": synchronize,
            "_sleep": sleep,
            "get_device_properties": lambda device: properties,
            "mem_get_info": lambda: (1 << 26, 1 << 27),
            "memory_reserved": lambda: 0,
            "memory_allocated": lambda: 0,
            "memory_stats": lambda: {"allocation.all.allocated": gpu.allocated, "segment.all.allocated": 0},
            "empty_cache": lambda: None,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
