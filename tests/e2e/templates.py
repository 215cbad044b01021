"""Template payloads for the tests, as a user would write them."""

ECHO = """{#- farbench
summary: gives its parameters back
backends: {one: the first, two: the second}
-#}
import json
import os
import sys

from harness import Needs, Payload, Reported, main

CASES = json.loads({{ cases | literal }})

payload = Payload("echo", prepare=lambda params, device: params)


def build(params):
    noise = '{"not": "a result"'
    for stream in (sys.stdout, sys.stderr):
        stream.write(noise + "x" * 5_000_000 + "\\n")
        stream.flush()
    os.write(1, (noise + "\\n").encode())
    os.system("echo '{\\"not\\": \\"a result\\", \\"backend\\": \\"one\\", \\"median_us\\": 1}'")
    return Reported(samples_us=[5.0, 5.0, 5.0, 5.0, 5.0, 5.0], extra={"echo": params})


for name in ("one", "two"):
    payload.backend(name, Needs(device="any"))(build)

if __name__ == "__main__":
    main(payload, CASES)
"""

SLEEPY = """{#- farbench
summary: sleeps as long as it is told
parameters:
  i: {type: int}
  seconds: {type: float, default: 0.0}
  how: {type: str, default: ok}
backends: {one: the only one}
-#}
import json
import os
import signal
import time

from harness import Needs, Payload, Reported, main

CASES = json.loads({{ cases | literal }})

payload = Payload("sleepy", prepare=lambda params, device: params)


@payload.backend("one", Needs(device="any"))
def one(params):
    time.sleep(params.get("seconds", 0.0))
    how = params.get("how", "ok")
    if how == "raise":
        raise ValueError("told to")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        os._exit(3)
    return Reported(samples_us=[10.0] * 10, extra={"i": params["i"]})


if __name__ == "__main__":
    main(payload, CASES)
"""
