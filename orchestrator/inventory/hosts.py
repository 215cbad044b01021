"""What hosts.yaml may say of a host."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

from orchestrator.yamlfile import suggestion

HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
TRANSPORTS = ("ssh", "openssh")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_GPU_UUID = re.compile(r"(GPU|MIG)-[A-Za-z0-9/-]+")

Strings = Annotated[tuple[str, ...], Field(strict=False)]
LocalPath = Annotated[Path, Field(strict=False)]
NonEmpty = Annotated[str, Field(min_length=1)]


class _Spec(BaseModel):
    """Unknown keys are mistakes; values are what they are written as, never converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class FromEnvironment(_Spec):
    """A value taken from the controller's environment when a run starts, and never stored."""

    from_env: NonEmpty


class CpuSlots(_Spec):
    """A host used for its CPU: how many measurements may run side by side."""

    cpu: int = Field(ge=1, le=1024)


class SlurmSpec(_Spec):
    """What is asked of Slurm; the agent then runs inside the allocation."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    nodes: int = Field(default=1, ge=1, le=64)
    """The entry stands for so many hosts (`HostSpec.nodes`), each with a job of one node."""
    gpus_per_node: int | None = Field(default=None, ge=0)
    cpus_per_task: int | None = Field(default=None, ge=1)
    mem: str | None = None
    time: str | None = None
    args: Strings = ()
    """Further options of sbatch, one argument each, as they are."""

    def options(self) -> tuple[str, ...]:
        """The options of sbatch for one node."""
        asked = {
            "partition": self.partition, "account": self.account, "qos": self.qos, "constraint": self.constraint,
            "gpus-per-node": self.gpus_per_node, "cpus-per-task": self.cpus_per_task, "mem": self.mem, "time": self.time,
        }  # fmt: skip
        return (*(f"--{name}={value}" for name, value in asked.items() if value is not None), *self.args)

    @field_validator("time", "mem", mode="before")
    @classmethod
    def _minutes_and_megabytes_may_be_numbers(cls, value: Any) -> Any:
        return str(value) if type(value) is int else value


class Launcher(_Spec):
    """How the agent gets started: over SSH directly, or by Slurm when `slurm` is given."""

    slurm: SlurmSpec | None = None

    @property
    def kind(self) -> Literal["ssh", "slurm"]:
        """The launcher's name."""
        return "ssh" if self.slurm is None else "slurm"


EnvironmentValue = Annotated[
    Annotated[str, Tag("text")] | Annotated[FromEnvironment, Tag("lookup")],
    Discriminator(lambda value: "text" if isinstance(value, str) else "lookup"),
]


class HostSpec(_Spec):
    """One machine, with the file's `defaults` already merged in. Paths of this machine are absolute; those of the
    host (`workdir`, `python`, `agent_python`) are as written, and `~` in them is the host's.
    """

    name: NonEmpty
    address: NonEmpty | None = None
    user: NonEmpty | None = None
    port: int | None = Field(default=None, ge=1, le=65535)
    identity_file: LocalPath | None = None
    known_hosts: LocalPath | None = None
    proxy_jump: NonEmpty | None = None
    ssh_config: LocalPath | None = None
    workdir: NonEmpty = "~/.cache/farbench"
    python: NonEmpty | None = None
    activate: NonEmpty | None = None
    devices: Literal["all"] | CpuSlots | tuple[int | str, ...] = "all"
    env: dict[str, EnvironmentValue] = Field(default_factory=dict)
    tags: Strings = ()
    launcher: Launcher = Launcher()
    transport: Literal["ssh", "openssh"] = "ssh"
    """Who speaks SSH: farbench itself, or the system's `ssh` client."""
    insecure: bool = False
    jit_cache: Literal["shared", "private"] = "shared"
    """Where compilers of payloads keep what they make: with the user's other programs, or apart for each worker."""
    agent_python: NonEmpty | None = None
    embedded: bool = False

    def nodes(self) -> tuple[HostSpec, ...]:
        """The hosts of a run that the entry stands for: itself, or NAME-1, NAME-2, … where Slurm is asked for several
        nodes; each then has an agent, a journal and a job of its own."""
        slurm = self.launcher.slurm
        if slurm is None or slurm.nodes == 1:
            return (self,)
        alone = Launcher(slurm=slurm.model_copy(update={"nodes": 1}))
        return tuple(
            self.model_copy(update={"name": f"{self.name}-{number}", "launcher": alone})
            for number in range(1, slurm.nodes + 1)
        )

    @field_validator("tags", mode="before")
    @classmethod
    def _one_tag_needs_no_list(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("transport", mode="before")
    @classmethod
    def _transports_are_known(cls, value: Any) -> Any:
        if value in TRANSPORTS:
            return value
        raise ValueError(f"is `ssh` or `openssh`, not {value!r}{suggestion(str(value), TRANSPORTS)}")

    @field_validator("launcher", mode="before")
    @classmethod
    def _ssh_is_a_word(cls, value: Any) -> Any:
        if value == "ssh":
            return {}
        if isinstance(value, str):
            raise ValueError(f"is `ssh` or {{slurm: {{…}}}}, not {value!r}")
        return value

    @field_validator("devices", mode="before")
    @classmethod
    def _devices_are_all_or_named(cls, value: Any) -> Any:
        if value == "all" or isinstance(value, (dict, CpuSlots)):
            return value
        if not isinstance(value, (list, tuple)) or not value:
            raise ValueError("is `all`, a list of indices or UUIDs, or {cpu: N}")
        for device in value:
            index = type(device) is int and device >= 0
            if not index and not (isinstance(device, str) and _GPU_UUID.fullmatch(device)):
                raise ValueError(f"{device!r} is neither an index (0, 1, …) nor a UUID (GPU-…, MIG-…)")
        if len(set(value)) != len(value):
            raise ValueError("names a device twice")
        return tuple(value)

    @field_validator("env", mode="before")
    @classmethod
    def _variables_are_text(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        for name, content in value.items():
            if not _VARIABLE.fullmatch(name):
                raise ValueError(f"{name!r} is no name of an environment variable")
            if not isinstance(content, (str, dict, FromEnvironment)) and type(content) is not int:
                raise ValueError(f"{name} is text (quote it), a whole number, or {{from_env: NAME}}")
            if isinstance(content, str) and "\0" in content:
                raise ValueError(f"{name} has a NUL character, which no environment can hold")
        return {name: str(content) if type(content) is int else content for name, content in value.items()}

    @model_validator(mode="after")
    def _has_an_address(self) -> HostSpec:
        if not HOST_NAME.fullmatch(self.name) or self.name == "all":
            raise ValueError(
                f"{self.name!r} is no name for a host (letters, digits, `.`, `_`, `-`; not `all`)"
            )
        if self.embedded == (self.address is not None):
            raise ValueError(
                "an embedded host has no address" if self.embedded else "needs `address`, or `embedded: true`"
            )
        if self.embedded and self.transport != "ssh":
            raise ValueError("an embedded host is reached by farbench itself: leave `transport` out")
        return self
