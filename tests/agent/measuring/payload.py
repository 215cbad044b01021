"""A stdlib-only payload that reports, attempt by attempt, what its case's `params["says"]` lists for each backend.

A word is the verdict, `suspect:0.05` one with this relative error; others: `incorrect`, `kill`, `gate` (waits for the file
`open`, then is suspect), `unhealthy` (reports, then says that the device is broken), `rows` (two rows, the second suspect),
`no_samples`, `hang` (in compile), `lock` (leaves a lock in its compiler's cache, then hangs in compile), `caches`
(reports where its compilers keep things), `strange` (values that JSON does not know), `clock=1700` or `clock=1700=4` (the device has this SM clock, and this limit in force,
for several looks of the telemetry; then valid).
"""

import json
import os
import signal
import sys
import time

incoming = os.fdopen(int(os.environ["FARBENCH_WORKER_IN"]), "rb")
outgoing = os.fdopen(int(os.environ["FARBENCH_WORKER_OUT"]), "wb")
CACHES = ("FLASHINFER_WORKSPACE_BASE", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR")


def send(**message):
    outgoing.write(json.dumps(message).encode("ascii") + b"\n")
    outgoing.flush()


def note(name, text):
    fd = os.open(os.path.join(os.environ["TRACES"], name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, (text + "\n").encode())
    os.close(fd)


def record(backend, word):
    verdict, _, error = word.partition(":")
    doubtful = verdict in ("suspect", "invalid")
    return {
        "backend": backend,
        "status": "incorrect" if verdict == "incorrect" else "ok",
        "reason": "wrong" if verdict == "incorrect" else None,
        "verdict": verdict if doubtful else "valid",
        "reasons": ["noisy"] if doubtful else [],
        "timing": {"timer": "host", "median_us": 10.0, "samples": 9, "rel_error": float(error or 0.03)},
        "samples_us": [10.0] * 9,
        "extra": {"word": word},
    }


def run_at(sm, limit="0"):
    """Several looks at the device at this clock."""
    answers, looks = os.environ["FAKE_NVML"], os.environ["FAKE_NVML_LOOKS"]
    with open(answers) as file:
        fields = file.read().strip().split("|")
    fields[6], fields[10] = sm, limit
    with open(answers + ".mine", "w") as file:
        file.write("|".join(fields) + "\n")
    os.replace(answers + ".mine", answers)
    enough = os.path.getsize(looks) + 6
    while os.path.getsize(looks) < enough:
        time.sleep(0.01)


def compile_phase(word):
    if word in ("hang", "lock"):
        if word == "lock":
            folder = os.path.join(os.environ["TORCH_EXTENSIONS_DIR"], "py311_cu130", "mine")
            os.makedirs(folder)
            open(os.path.join(folder, "lock"), "x").close()
        note("compiling", word)
        time.sleep(600)


def measure(case, backend, word):
    if word == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "gate":
        note("gates", case["case_id"])
        while not os.path.exists(os.path.join(os.environ["TRACES"], "open")):
            time.sleep(0.01)
        return [record(backend, "suspect")]
    if word.startswith("clock="):
        run_at(*word.split("=")[1:])
        return [record(backend, "valid")]
    if word == "rows":
        return [dict(record(backend, w), row={"n": n}) for n, w in enumerate(("valid", "suspect"))]
    if word == "no_samples":
        return [dict(record(backend, "valid"), samples_us=[])]
    if word == "caches":
        extra = {name: os.environ.get(name) for name in CACHES}
        return [dict(record(backend, "valid"), extra=extra)]
    if word == "strange":
        metrics = {"a": float("nan"), "b": float("-inf"), "c": 1, "d": "text", "e": 10**400}
        return [dict(record(backend, "valid"), metrics=metrics, extra={"f": float("inf")})]
    return [record(backend, word)]


send(type="ready", import_s=0.01, environment={})
for line in incoming:
    message = json.loads(line)
    if message["type"] == "exit":
        break
    case, attempt = message["case"], message["attempt"]
    healthy = True
    for backend in case["backends"]:
        words = case["params"]["says"][backend]
        word = words[min(attempt, len(words)) - 1]
        note("measured", f"{case['case_id']} {backend} {attempt} {os.getpid()}")
        send(type="phase", backend=backend, phase="compile")
        compile_phase(word)
        if word == "broken":
            healthy = False
            break
        send(type="phase", backend=backend, phase="measure")
        for each in measure(case, backend, word):
            send(type="measurement", measurement=each)
        if word == "unhealthy":
            healthy = False
            break
    send(type="case_done", healthy=healthy)
sys.exit(0)
