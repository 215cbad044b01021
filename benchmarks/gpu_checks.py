"""What only a GPU can tell about the payloads; run it on a GPU host under the payloads' interpreter.

    python benchmarks/gpu_checks.py reference     # our NVFP4 swizzle and dequantiser against flashinfer's
    python benchmarks/gpu_checks.py refusals DIR/gemm_fp4.py   # FP4 calls bind to the installed signatures and reach the library
    python benchmarks/gpu_checks.py times         # cold GPU times measured without farbench, to hold its numbers against
    python benchmarks/gpu_checks.py cupti         # CUPTI as a timer: agrees with the graph, leaves its time as it was, and its cost
    python benchmarks/gpu_checks.py streams       # what a process pays for each kernel once it has used several streams

Each prints one JSON object a line, and exits with 1 when a check does not hold.
"""

from __future__ import annotations

import inspect
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "payloads"))


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def block_varying(rows: int, k: int) -> object:
    """bfloat16 on the GPU whose blocks of 16 differ by powers of two: a wrong scale shows."""
    import torch

    generator = torch.Generator("cuda").manual_seed(rows)
    powers = torch.randint(-4, 5, (rows, k // 16, 1), device="cuda", generator=generator)
    x = torch.randn(rows, k // 16, 16, device="cuda", generator=generator) * torch.exp2(powers.float())
    return x.reshape(rows, k).to(torch.bfloat16)


def reference() -> bool:
    """Scales by `block_scale_interleave` and values by `e2m1_and_ufp8sf_scale_to_float` equal the reference's."""
    import flashinfer
    import torch
    from harness import nvfp4_torch

    good = True
    for rows, k in ((1, 64), (16, 256), (128, 512), (130, 1024), (768, 6144)):
        x = block_varying(rows, k)
        q = nvfp4_torch.quantise(x)
        theirs = flashinfer.block_scale_interleave(q.scales.view(torch.uint8).contiguous())
        ours = nvfp4_torch.swizzle(q.scales).view(torch.uint8).flatten()
        same = theirs.numel() == ours.numel() and bool((theirs.flatten() == ours).all())
        inverse = torch.tensor([1.0 / float(q.global_scale)], dtype=torch.float32)
        values = flashinfer.e2m1_and_ufp8sf_scale_to_float(
            q.packed.view(torch.uint8).cpu(), ours.cpu(), inverse, 16, 1, True
        )
        error = float((values.float() - nvfp4_torch.dequantise(q).float().cpu()).abs().max())
        largest = float(values.abs().max())
        good = good and same and error <= 1e-6 * largest
        say(check="reference", rows=rows, k=k, swizzle_equal=same, max_abs_error=error, largest=largest)
    return good


def refusals(script: str) -> bool:
    """Each FP4 backend's call, past the gates: it must bind to the installed function, whose own refusal is shown."""
    import flashinfer
    import torch
    from harness import nvfp4_torch
    from harness.device import detect

    payload = load(Path(script)).payload
    problem = payload.prepare({"m": 16, "n": 256, "k": 512}, detect(True))

    def quantised(x: object, scale: object, **_: object) -> tuple[object, object]:
        q = nvfp4_torch.quantise(x, global_scale=float(scale))  # type: ignore[arg-type]
        return q.packed, nvfp4_torch.swizzle(q.scales)

    good = True
    real_mm, real_quantise = flashinfer.mm_fp4, flashinfer.nvfp4_quantize
    bound: list[str] = []

    def mm_fp4(*args: object, **kwargs: object) -> object:
        inspect.signature(real_mm).bind(*args, **kwargs)
        bound.append("mm_fp4")
        return real_mm(*args, **kwargs)

    flashinfer.mm_fp4 = mm_fp4
    flashinfer.nvfp4_quantize = quantised
    for name, backend in payload.backends.items():
        if not backend.needs.fp4 or name.startswith("sgl"):
            continue
        bound.clear()
        try:
            call = backend.build(problem)
            call.run(call.inputs, call.make_out() if call.make_out else None)
            torch.cuda.synchronize()
            told = "it ran"
        except TypeError as error:
            good, told = False, f"TypeError: {error}"
        except Exception as error:  # noqa: BLE001 - whatever the library refuses with is the answer
            told = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
        if name.startswith("flashinfer:"):
            good = good and bound == ["mm_fp4"]
        say(check="refusals", backend=name, bound=list(bound), answer=told)
    flashinfer.mm_fp4, flashinfer.nvfp4_quantize = real_mm, real_quantise
    try:
        inspect.signature(real_quantise).bind(
            torch.zeros(16, 512), torch.ones(1), sfLayout=flashinfer.SfLayout.layout_128x4, do_shuffle=False
        )
        real_quantise(
            torch.zeros(16, 512, dtype=torch.bfloat16, device="cuda"), torch.ones(1, device="cuda"),
            sfLayout=flashinfer.SfLayout.layout_128x4, do_shuffle=False,
        )  # fmt: skip
        told = "it ran"
    except TypeError as error:
        good, told = False, f"TypeError: {error}"
    except Exception as error:  # noqa: BLE001 - as above
        told = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    say(check="refusals", function="flashinfer.nvfp4_quantize", answer=told)
    return good


def load(script: Path) -> ModuleType:
    """A rendered payload as a module."""
    module = ModuleType("payload")
    module.__file__ = str(script)
    exec(compile(script.read_text(encoding="utf-8"), str(script), "exec"), module.__dict__)
    return module


def use_streams(count: int) -> None:
    """Do work on so many streams of torch's pool."""
    import torch

    touched = torch.zeros(1, device="cuda")
    for _ in range(count):
        with torch.cuda.stream(torch.cuda.Stream()):
            touched.add_(1)
        torch.cuda.synchronize()


def replays_us(graph: object, calls: int) -> list[float]:
    """A captured graph's time a call, in bursts of 8 ms after rests of 20 ms: under steady load the clocks go down."""
    import torch

    samples = []
    for _ in range(12):
        time.sleep(0.02)
        until = time.perf_counter() + 0.008
        graph.replay()  # type: ignore[attr-defined]  # the clocks rise
        while time.perf_counter() < until:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()  # type: ignore[attr-defined]
            end.record()
            end.synchronize()
            samples.append(begin.elapsed_time(end) * 1000.0 / calls)
    return samples


def captured(calls: list[Callable[[], object]], stream: object = None) -> object:
    """The calls in a graph, after one eager pass; `stream` does both."""
    import torch

    stream = stream or torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    return graph


def times() -> bool:
    """A graph over a ring of 600 MB of operands, scales among them, in a process that has used several streams
    (`streams` tells why). Nothing of the harness is used."""
    import flashinfer
    import sgl_kernel
    import torch

    def fp8(rows: int, k: int) -> torch.Tensor:
        return torch.randn(rows, k, device="cuda").to(torch.float8_e4m3fn)

    use_streams(8)
    for m, n, k in (
        (16, 2048, 6144),
        (256, 2048, 6144),
        (1024, 2048, 6144),
        (16, 768, 6144),
        (4096, 2048, 6144),
    ):
        sets = max(2, min(60, 600_000_000 // ((m + n) * k + 2 * m * n)))
        operands = [
            (
                *(fp8(m, k), fp8(n, k), torch.empty(m, n, dtype=torch.bfloat16, device="cuda")),
                *(torch.ones(size, device="cuda") for size in (m, n)),
            )
            for _ in range(sets)
        ]
        ways = {
            "torch": lambda a, b, out, r, c: torch._scaled_mm(
                a, b.t(), r[:1], c[:1], out_dtype=torch.bfloat16, out=out
            ),
            "sgl_kernel": lambda a, b, out, r, c: sgl_kernel.fp8_scaled_mm(
                a, b.t(), r, c, torch.bfloat16, None
            ),
            "flashinfer:cublas": lambda a, b, out, r, c: flashinfer.bmm_fp8(
                a[None], b.t()[None], r[:1], c[:1], torch.bfloat16, out[None], backend="cublas"
            ),
        }
        for name, way in ways.items():
            calls = [lambda one=one, way=way: way(*one) for one in operands]
            say(
                check="times",
                payload="gemm_fp8",
                backend=name,
                m=m,
                n=n,
                k=k,
                cold_us=round(statistics.median(replays_us(captured(calls), sets)), 3),
                sets=sets,
            )
        del operands
        torch.cuda.empty_cache()
    return True


def streams() -> bool:
    """One graph of FP8 products of two kernels each, over a cold ring, replayed as the process uses more and
    more streams beside the default one."""
    import torch

    def fp8(rows: int) -> torch.Tensor:
        return torch.randn(rows, 6144, device="cuda").to(torch.float8_e4m3fn)

    one = torch.ones((), device="cuda")
    operands = [
        (fp8(16), fp8(2048), torch.empty(16, 2048, dtype=torch.bfloat16, device="cuda")) for _ in range(26)
    ]
    calls = [
        lambda a=a, b=b, out=out: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, out=out)
        for a, b, out in operands
    ]
    graph = captured(calls)
    first_us = last_us = statistics.median(replays_us(graph, len(calls)))
    say(check="streams", used=1, cold_us=round(first_us, 3))
    so_far = 1
    for used in (2, 3, 4, 5, 6, 8, 16, 32):
        use_streams(used - so_far)
        so_far = used
        last_us = statistics.median(replays_us(graph, len(calls)))
        say(check="streams", used=used, cold_us=round(last_us, 3))
    say(check="streams", later_by_us=round(last_us - first_us, 3))
    return True


def rested(timer: object) -> float:
    """The median of a short turn after a rest: under steady load a GPU lowers its clocks, and two turns would differ."""
    from harness import stats

    time.sleep(0.25)
    return stats.median(timer.take(8.0))  # type: ignore[attr-defined]


def cupti() -> bool:
    """The harness's CUPTI timer beside its graph, which is timed before and after CUPTI recorded anything."""
    import torch
    from harness import Call, Device, cuda, kernel_trace, ring, stats, timers, verdicts

    device = Device("GPU", torch.cuda.get_device_capability(), "cuda:0")
    cuda.settle(device.torch_device)
    good = True
    for m, n, k in ((16, 2048, 6144), (1024, 2048, 6144), (4096, 2048, 6144)):
        a, b = (torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for rows in (m, n))
        call = Call(
            run=lambda inputs, out: torch.mm(inputs[0], inputs[1].t(), out=out),
            inputs=(a, b),
            make_out=lambda m=m, n=n: torch.empty(m, n, device="cuda", dtype=torch.bfloat16),
            reference=lambda: None,
        )
        rotation = ring.cold(call, device, ring.make_out(call))
        _, issue_us = timers.host_cost(call, rotation)
        flush = cuda.L2Flush(device.torch_device)
        estimate_us = stats.median(timers.EventsTimer(call, rotation, flush, issue_us).take(1.0))
        graph = timers.GraphTimer(call, rotation, estimate_us)
        before_us = rested(graph)
        began = time.perf_counter()
        try:
            tracer = kernel_trace.tracer()
            traced = timers.CuptiTimer(call, rotation, flush, issue_us, estimate_us, tracer)
            start_s, began = time.perf_counter() - began, time.perf_counter()
            samples = traced.take(10.0)
        except (kernel_trace.Unusable, RuntimeError) as error:
            say(check="cupti", unusable=str(error))
            return False
        turn_s = time.perf_counter() - began
        after_us = rested(graph)
        agree = not verdicts.timers_disagree(before_us, stats.median(samples))
        undisturbed = abs(after_us / before_us - 1) < 0.03
        good = good and agree and undisturbed
        say(
            check="cupti",
            m=m,
            n=n,
            k=k,
            agree=agree,
            undisturbed=undisturbed,
            cupti_us=round(stats.median(samples), 3),
            samples=len(samples),
            graph_us=round(before_us, 3),
            graph_after_us=round(after_us, 3),
            start_s=round(start_s, 3),
            turn_s=round(turn_s, 3),
        )
    return good


if __name__ == "__main__":
    # As the harness does: flashinfer compiles by `ninja`, which lies beside the interpreter.
    os.environ["PATH"] = os.pathsep.join(
        [os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable)]
    )
    which = sys.argv[1] if len(sys.argv) > 1 else ""
    if which == "refusals" and len(sys.argv) < 3:
        sys.exit("refusals needs the rendered script: farbench render examples/fp4-gemm-glm5.yaml -o DIR")
    checks = {
        "reference": reference,
        "refusals": lambda: refusals(sys.argv[2]),
        "times": times,
        "cupti": cupti,
        "streams": streams,
    }
    done = checks.get(which)
    if done is None:
        sys.exit(__doc__)
    sys.exit(0 if done() else 1)
