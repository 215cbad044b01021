"""A stdlib-only payload that speaks the worker protocol and does what its case's `params` ask of it.

`params["does"]` maps a backend to what it does: `ok` (the default), `kill`, `exit`, `hang`, `deaf` (hangs and ignores
SIGTERM), `fail`, `damage` (of its process), `nan`, `noise`, `stray` (starts a process in a session of its own, then hangs), `secret`, `unhealthy`.
`params["inputs"]` is what it does as it makes the inputs, before any backend; `params["silent"]`: it never says what it does.
"""

import json
import os
import signal
import subprocess
import sys
import time

if os.environ.get("PAYLOAD_CANNOT_START"):
    raise ImportError("libbroken.so: cannot open shared object file")

incoming = os.fdopen(int(os.environ["FARBENCH_WORKER_IN"]), "rb")
outgoing = os.fdopen(int(os.environ["FARBENCH_WORKER_OUT"]), "wb")
healthy = True


def send(**message):
    outgoing.write(json.dumps(message).encode("ascii") + b"\n")
    outgoing.flush()


def note(name, text):
    """Leave a trace that a test can count."""
    folder = os.environ["TRACES"]
    fd = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, (text + "\n").encode())
    os.close(fd)


def behave(action, case, backend):
    global healthy
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "kill the agent":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)
    elif action == "exit":
        print("last words of the payload", flush=True)
        os._exit(7)
    elif action == "hang":
        time.sleep(600)
    elif action == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    elif action == "noise":
        for _ in range(80):
            sys.stdout.write("o" * 65535 + "\n")
            sys.stderr.write("e" * 65535 + "\n")
    elif action == "stray":
        child = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
        )
        note("strays", str(child.pid))
        time.sleep(600)
    elif action == "bare stray":
        child = subprocess.Popen(["/bin/sleep", "600"], start_new_session=True, env={})
        note("strays", str(child.pid))
        time.sleep(600)
    elif action in ("bare orphan", "bare daemon"):
        # Twice forked, in a session of its own, with an empty environment.
        path = os.path.join(os.environ["TRACES"], action + "s")
        subprocess.run(["/bin/sh", "-c", 'setsid sleep 600 & echo $! >> "$0"', path], env={})
        if action == "bare orphan":
            os.kill(os.getpid(), signal.SIGKILL)
    elif action == "secret":
        sys.stdout.write("the token is " + os.environ["TOKEN"][:5])
        sys.stdout.flush()
        time.sleep(0.05)
        sys.stdout.write(os.environ["TOKEN"][5:] + "\n")
        sys.stdout.flush()
    elif action == "unhealthy":
        healthy = False
    elif action == "damage":
        os.mkdir("gone")
        os.chdir("gone")
        os.rmdir("../gone")
    elif action == "gate":
        note("gates", case["case_id"])
        while not os.path.exists(os.path.join(os.environ["TRACES"], "open")):
            time.sleep(0.01)


def measure(case, backend):
    try:
        if case["params"].get("does", {}).get(backend) == "fail":
            raise ValueError("no kernel for {}".format(case["case_id"]))
        os.getcwd()
    except (OSError, ValueError) as error:
        return {"backend": backend, "status": "error", "reason": f"{type(error).__name__}: {error}"}
    median = float("nan") if case["params"].get("does", {}).get(backend) == "nan" else 12.5
    return {
        "backend": backend,
        "resolved_backend": backend + "-v1",
        "status": "ok",
        "verdict": "valid",
        "reasons": [],
        "row": None,
        "timing": {"timer": "graph", "cache": "cold", "median_us": median, "samples": 3},
        "samples_us": [12.0, 12.5, 13.0],
        "metrics": {"tflops": 3.5, "peak_fraction": float("inf")},
        "extra": {"visible": os.environ.get("CUDA_VISIBLE_DEVICES"), "rank": os.environ.get("RANK")},
        "accuracy": {"cosine": 0.999, "reference": "float64"},
    }


send(type="ready", import_s=0.01, environment={"numbers": 1, "pid": "not told"})
for line in incoming:
    message = json.loads(line)
    if message["type"] == "exit":
        break
    case = message["case"]
    healthy = True
    note("cases", " ".join((case["case_id"], str(os.getpid()), os.environ.get("RANK", "-"))))
    phases = () if case["params"].get("silent") else ("compile", "check", "measure")
    if phases:
        send(type="phase", backend=case["backends"][0], phase="prepare")
    inputs = case["params"].get("inputs", ["ok"])
    behave(inputs[min(message["attempt"], len(inputs)) - 1], case, None)
    for backend in case["backends"]:
        for phase in phases:
            send(type="phase", backend=backend, phase=phase)
        if os.environ.get("RANK", "0") == case["params"].get("rank_that_dies", "-"):
            os._exit(3)
        behave(case["params"].get("does", {}).get(backend, "ok"), case, backend)
        send(type="measurement", measurement=measure(case, backend))
    send(type="case_done", healthy=healthy)
