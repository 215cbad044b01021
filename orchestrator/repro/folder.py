"""The folder: what the measurement was made with, and the one command that makes it again without farbench."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from orchestrator.errors import FileError
from orchestrator.repro.recipe import Recipe, parameters
from orchestrator.wording import number, visible

_OWN = ("README.txt", "case.json", "measured.json", "environment.json", "requirements.txt")
_ABOUT = ".farbench"
"""Where our own files go when the program brings some of the same names."""


def write(recipe: Recipe, directory: Path) -> Path:
    """Write the folder, which must not exist or be empty. Raises `FileError`."""
    try:
        if directory.exists() and any(directory.iterdir()):
            raise FileError("is there already, and not empty", path=directory)
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, content in files_of(recipe).items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.write_bytes(content)
            if recipe.interpreter is None and name in recipe.files:
                path.chmod(0o700)
    except OSError as error:
        raise FileError(f"cannot be written: {error.strerror}", path=error.filename or directory) from error
    return directory


def files_of(recipe: Recipe) -> dict[str, bytes]:
    """Every file of the folder by path: the program's own, and what tells of the measurement."""
    own = dict(recipe.files)
    for name in own:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise FileError("would lie outside the folder", path=name)
    about = "" if not set(_OWN) & set(own) else _ABOUT + "/"
    texts = {
        "README.txt": readme(recipe),
        "case.json": parameters(recipe),
        "measured.json": _json(recipe.measurement.model_dump(mode="json", exclude={"samples_us"})),
        "environment.json": _json(dict(recipe.environment)),
    }
    frozen = requirements(recipe)
    if frozen:
        texts["requirements.txt"] = frozen
    return {**own, **{about + name: text.encode("utf-8") for name, text in texts.items()}}


def command_line(recipe: Recipe) -> str:
    """The command, to be run in the folder, on the host, in any shell. Variables and arguments are quoted; an `activate`
    line is run by /bin/sh as the agent does."""
    program = [shlex.quote(argument) for argument in recipe.argv]
    if recipe.interpreter is not None:
        program = [_path(recipe.interpreter), *program]
    elif recipe.argv[0] in recipe.files and "/" not in recipe.argv[0]:
        program[0] = shlex.quote(f"./{recipe.argv[0]}")
    words = [shlex.quote(f"{name}={value}") for name, value in variables(recipe).items()]
    if words:
        program = ["env", *words, *program]
    activate = recipe.job.get("activate")
    if activate:
        program = [
            "/bin/sh",
            "-c",
            shlex.quote('eval "$1"; shift; exec "$@"'),
            "sh",
            shlex.quote(str(activate)),
            *program,
        ]
    return " ".join(program)


def variables(recipe: Recipe) -> dict[str, str]:
    """The environment variables of the command; those that are secret are not among them."""
    found = dict(recipe.variables)
    if recipe.devices:
        found |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(recipe.devices)}
    return found


def requirements(recipe: Recipe) -> str:
    """The packages of the interpreter that measured, as pip takes them; empty where they are not known."""
    packages = recipe.environment.get("packages")
    if not isinstance(packages, dict):
        return ""
    lines = [f"{name}=={version}\n" for name, version in sorted(packages.items()) if _is_word(name, version)]
    return f"# The packages of {recipe.interpreter or 'the host'} when this was measured.\n" + "".join(lines) if lines else ""  # fmt: skip


def readme(recipe: Recipe) -> str:
    """What this is, how to run it, and what came out the first time."""
    return "\n".join(_readme(recipe)) + "\n"


def _readme(recipe: Recipe) -> Iterator[str]:
    m = recipe.measurement
    yield f"{visible(m.label)} · {visible(m.backend)} · {visible(m.payload)}"
    yield ""
    yield f"This folder repeats one measurement of run {m.run_id} by hand, without farbench."
    yield ""
    yield f"1. Copy it to the host {visible(m.host)}" + (f" ({visible(recipe.spec.address)})" if recipe.spec.address else "") + "."  # fmt: skip
    for name in recipe.secrets:
        yield f"   Set {name} there first: its value came from outside and is not in here."
    yield "2. In the folder, run:"
    yield ""
    yield f"   {command_line(recipe)}"
    yield ""
    if recipe.is_script:
        yield "It prints what the program prints; the number is in there."
    else:
        yield "It prints one JSON line a measurement; `timing.median_us` is the number."
        if len(recipe.argv) == 1:
            yield f"This payload measures all its cases; the one meant has case_id {m.case_id} and backend {visible(m.backend)}."
    yield ""
    yield "The first time:"
    for name, value in _first_time(recipe):
        yield f"  {name + ':':<22}{value}"
    yield ""
    yield from _clock_hint(recipe)
    yield "case.json has every parameter, environment.json the software it was measured with, measured.json the whole result."


def _first_time(recipe: Recipe) -> Iterator[tuple[str, str]]:
    m = recipe.measurement
    yield "status", m.status.value + (f", {m.verdict.value}" if m.verdict else "")
    if m.reason:
        yield "reason", visible(m.reason, 500)
    if m.timing:
        yield "median", f"{number(m.timing.median_us)} µs ({m.timing.timer}, cache {m.timing.cache or 'as the program left it'})"  # fmt: skip
    yield "started", visible(m.started_at or "unknown")
    yield "host", visible(m.host)
    if m.device:
        yield "device", f"{visible(m.device.name)}, index {m.device.index}"
        yield "device UUID", ", ".join(recipe.devices) or visible(m.device.uuid)
    t = m.telemetry
    for name, value, unit in (
        ("SM clock", t.sm_clock_mhz if t else None, "MHz"),
        ("memory clock", t.mem_clock_mhz if t else None, "MHz"),
        ("power", t.power_w if t else None, "W"),
        ("temperature", t.temperature_c if t else None, "°C"),
    ):
        if value is not None:
            yield name, f"{number(value)} {unit}"
    driver = recipe.environment.get("cuda")
    if isinstance(driver, dict) and driver.get("driver"):
        yield "driver", visible(str(driver["driver"]))


def _clock_hint(recipe: Recipe) -> Iterator[str]:
    t = recipe.measurement.telemetry
    if recipe.devices and t and t.sm_clock_mhz:
        clock = round(t.sm_clock_mhz)
        yield "To hold the clock that it had (as root; the second line gives it back):"
        yield ""
        yield f"   nvidia-smi -i {recipe.devices[0]} --lock-gpu-clocks={clock},{clock}"
        yield f"   nvidia-smi -i {recipe.devices[0]} --reset-gpu-clocks"
        yield ""


def _path(path: str) -> str:
    """Quoted for a shell, but for the host's own home: a quoted `~` is just a character."""
    return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else shlex.quote(path)


def _is_word(*texts: Any) -> bool:
    return all(
        isinstance(text, str) and text and not set(text) & set(" \t\r\n#;@\\") and text.isprintable()
        for text in texts
    )


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, allow_nan=False) + "\n"
