"""What a sweep file may say, key by key. The axes are checked where they are expanded (`axes.py`)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonEmpty = Annotated[str, Field(min_length=1)]
Format = Literal["json", "json_lines", "csv"]

SECTION_KEYS = ("matrix", "zip", "include", "exclude", "model")
"""The keys that make a part's cases."""


class _Spec(BaseModel):
    """Unknown keys are mistakes; values are what they are written as, never converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Measure(_Spec):
    """How each backend of a case is timed."""

    cache: Literal["cold", "hot"] = "cold"
    timer: Literal["auto", "graph", "events", "cupti", "host"] = "auto"
    min_time_ms: Positive = 50
    max_time_ms: Positive = 2000
    target_rel_error: Annotated[float, Field(gt=0, lt=1)] = 0.005
    rounds: int = Field(default=3, ge=1, le=1000)
    retries: int = Field(default=1, ge=0, le=100)
    lock_clocks: bool | Annotated[int, Field(ge=100, le=10000)] = False
    """True (the GPU's own default clock) or MHz: hold the GPUs' clocks while cases of this part are measured."""

    @model_validator(mode="after")
    def _times_are_in_order(self) -> Measure:
        if self.min_time_ms > self.max_time_ms:
            raise ValueError(
                f"min_time_ms ({self.min_time_ms:g}) is above max_time_ms ({self.max_time_ms:g})"
            )
        return self


class Accuracy(_Spec):
    """What a result must reach to count as right; what is None is the payload's own default."""

    min_cosine: Annotated[float, Field(ge=-1, le=1)] | None = None
    max_rel_error: Annotated[float, Field(ge=0)] | None = None


class ResultFile(_Spec):
    """A file in which a script payload leaves its results."""

    file: NonEmpty
    format: Format | None = None


class ScriptSpec(_Spec):
    """`payload:` as a mapping: any program as a benchmark."""

    script: NonEmpty | None = None
    command: list[str] | None = Field(default=None, min_length=1)
    name: NonEmpty | None = None
    args: list[str] = []
    files: list[NonEmpty] = []
    collect: list[NonEmpty] = []
    results: Annotated[
        Annotated[Format, Tag("stdout")] | Annotated[ResultFile, Tag("in_a_file")],
        Discriminator(lambda value: "in_a_file" if isinstance(value, (dict, ResultFile)) else "stdout"),
    ] = "json_lines"
    keys: list[NonEmpty] = []

    @field_validator("collect")
    @classmethod
    def _stays_in_its_folder(cls, value: list[str]) -> list[str]:
        for pattern in value:
            if pattern.startswith(("/", "~")) or ".." in pattern.split("/"):
                raise ValueError(f"{pattern!r} leaves the case's working folder")
        return value

    @model_validator(mode="after")
    def _is_one_program(self) -> ScriptSpec:
        if (self.script is None) == (self.command is None):
            raise ValueError(
                "needs `script` (a file that travels) or `command` (a program of the host), one of them"
            )
        if self.command is not None and not self.command[0]:
            raise ValueError("the first word of `command` is the program")
        return self


class ModelShapes(_Spec):
    """The GEMMs of a model's layer at given numbers of tokens; `config` is a Hugging Face config.json, and `gated` says what such a
    file may leave open: whether its MLPs have a gate."""

    preset: NonEmpty | None = None
    config: NonEmpty | None = None
    gated: bool | None = None
    tp: int = Field(default=1, ge=1)
    tokens: list[Annotated[int, Field(ge=1)]] = Field(min_length=1)

    @field_validator("tokens", mode="before")
    @classmethod
    def _one_number_needs_no_list(cls, value: Any) -> Any:
        return [value] if type(value) is int else value

    @model_validator(mode="after")
    def _is_one_model(self) -> ModelShapes:
        if (self.preset is None) == (self.config is None):
            raise ValueError("needs `preset` or `config`, one of them")
        if self.gated is not None and self.config is None:
            raise ValueError("takes `gated` only with `config`")
        return self


PayloadSpec = Annotated[
    Annotated[NonEmpty, Tag("template")] | Annotated[ScriptSpec, Tag("program")],
    Discriminator(lambda value: "program" if isinstance(value, (dict, ScriptSpec)) else "template"),
]


class PartSpec(_Spec):
    """The keys of one part."""

    payload: PayloadSpec
    matrix: Any = None
    zip: Any = None
    include: Any = None
    exclude: Any = None
    model: ModelShapes | None = None
    backends: list[NonEmpty] | None = Field(default=None, min_length=1)
    baseline: NonEmpty | None = None
    measure: Measure = Measure()
    accuracy: Accuracy = Accuracy()
    devices_per_case: int = Field(default=1, ge=1, le=1024)

    @field_validator("backends", mode="before")
    @classmethod
    def _one_backend_needs_no_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value


class HostsSpec(_Spec):
    """`hosts:` as a mapping."""

    names: list[NonEmpty] = []
    tags: list[NonEmpty] = []

    @field_validator("names", "tags", mode="before")
    @classmethod
    def _one_needs_no_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _names_something(self) -> HostsSpec:
        if not self.names and not self.tags:
            raise ValueError("names no host and no tag (leave it out for all hosts)")
        return self


class RunSpec(_Spec):
    """The keys that a sweep has once, whatever its parts."""

    name: NonEmpty | None = None
    placement: Literal["replicate", "replicate_devices", "shard"] = "replicate"
    timeout_s: Positive = 120
    compile_timeout_s: Positive = 600
    steal_after_s: Positive = 300
    hosts: HostsSpec | None = None

    @field_validator("hosts", mode="before")
    @classmethod
    def _names_need_no_mapping(cls, value: Any) -> Any:
        if value == "all":
            return None
        return {"names": value} if isinstance(value, (str, list)) else value
