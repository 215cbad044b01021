"""A payload whose results can be checked, and that behaves as badly as it is told."""

ODD = """{#- farbench
summary: gives a number that follows from its parameters, and leaves a trace each time it is measured
parameters:
  i: {type: int}
  seconds: {type: float, default: 0.0}
  how: {type: str, default: ok}
backends: {one: the first, two: the second}
-#}
import json
import os
import signal
import subprocess
import sys
import time

from harness import Needs, Payload, Reported, main

CASES = json.loads({{ cases | literal }})

payload = Payload("odd", prepare=lambda params, device: params)


def note(name, text):
    fd = os.open(os.path.join(os.environ["TRACES"], name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, (text + "\\n").encode())
    os.close(fd)


def misbehave(how):
    if how == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "orphan":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        note("orphans", str(child.pid))
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "fill":
        with open("filler", "wb", buffering=0) as file:
            while True:
                file.write(b"x" * 65536)
    elif how == "flood":
        # A gigabyte without a newline, then what a progress bar and a careless program print.
        piece = b"\\0\\x1b[31m" + b"f" * (1 << 20)
        for _ in range(1024):
            os.write(1, piece)
        os.write(1, b"\\n" + b"".join(b"\\r%3d%%" % n for n in range(100)) + b"\\n\\x1b]0;title\\x07last words\\n")
        raise ValueError("after the flood")
    elif how == "eat":
        held = [bytearray(os.urandom(1 << 20)) for _ in range(2000)]
    elif how == "wait":
        note("waiting", str(os.getpid()))
        while not os.path.exists(os.path.join(os.environ["TRACES"], "open")):
            time.sleep(0.02)


def build(name):
    def run(params):
        began = time.monotonic()
        time.sleep(params.get("seconds", 0.0))
        misbehave(params.get("how", "ok"))
        note("measured", json.dumps({
            "case": params["i"], "backend": name, "began": began, "ended": time.monotonic(), "pid": os.getpid(),
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES"), "host": os.environ.get("WHERE"),
        }))
        return Reported(samples_us=[10.0 + params["i"]] * 10, extra={"i": params["i"], "backend": name})
    return run


for name in ("one", "two"):
    payload.backend(name, Needs(device="any"))(build(name))

if __name__ == "__main__":
    main(payload, CASES)
"""
