"""A file of another tool, and how to say at which line it is wrong."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from orchestrator.errors import FileError

MOST_BYTES = 1024**3
_GZIP = b"\x1f\x8b"
_Model = TypeVar("_Model", bound=BaseModel)
Place = Sequence[str | int]
"""Keys and indices that lead to a value of a JSON document."""


class Foreign(BaseModel):
    """What a reader needs of a JSON object; tools may say more."""

    model_config = ConfigDict(extra="ignore", frozen=True)


@dataclass(frozen=True)
class Source:
    """The file: `folder` is where files that it names lie, None when there is none."""

    path: Path
    content: bytes

    @classmethod
    def read(cls, path: Path) -> Source:
        """Read a file, and unpack one that gzip packed (as pyperf writes `.json.gz`). Raises `FileError`."""
        try:
            with path.open("rb") as file:
                content = file.read(MOST_BYTES + 1)
            if content.startswith(_GZIP):
                with gzip.open(path) as packed:
                    content = packed.read(MOST_BYTES + 1)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise FileError(f"is damaged: {error}", path=path) from None
        except OSError as error:
            raise FileError(f"cannot be read: {error.strerror}", path=path) from None
        if len(content) > MOST_BYTES:
            raise FileError(f"is larger than {MOST_BYTES >> 30} GiB", path=path)
        return cls(path, content)

    @property
    def name(self) -> str:
        """The file's name, without what says that it was packed."""
        return self.path.name.removesuffix(".gz")

    @cached_property
    def sha256(self) -> str:
        """The content's SHA-256, in hex."""
        return hashlib.sha256(self.content).hexdigest()

    @cached_property
    def text(self) -> str:
        """The content as text, without a byte order mark and with newlines as line ends. Raises `FileError`."""
        encoding = "utf-16" if self.content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        try:
            text = self.content.decode(encoding)
        except UnicodeDecodeError as error:
            line = self.content.count(b"\n", 0, error.start) + 1
            raise FileError("is no text in UTF-8", path=self.path, line=line) from None
        return text.replace("\r\n", "\n")

    @cached_property
    def lines(self) -> list[str]:
        """The text's lines; only a newline ends one."""
        return self.text.removesuffix("\n").split("\n")

    def wrong(self, message: str, line: int | None = None) -> FileError:
        """The refusal of this file; `line` counts from 1."""
        return FileError(message, path=self.path, line=line)

    @cached_property
    def json(self) -> Any:
        """The whole content as one JSON value; NaN and infinities are let in. Raises `FileError`."""
        return self.json_of(self.text, 1)

    def json_of(self, text: str, line: int) -> Any:
        """A JSON value that begins on that line. Raises `FileError`."""
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            ends = not text[error.pos :].strip() or error.msg.startswith("Unterminated string")
            what = "ends in the middle of JSON (was it cut off?)" if ends else f"is no JSON: {error.msg}"
            raise self.wrong(what, line + error.lineno - 1) from None
        except RecursionError:
            raise self.wrong("is nested too deeply", line) from None
        except ValueError:  # more digits than Python turns into an integer
            raise self.wrong("holds a whole number that is too long", line) from None

    def checked(self, model: type[_Model], value: Any, place: Place = (), line: int | None = None) -> _Model:
        """`value`, found at `place` of the document (or on `line`), as `model`. Raises `FileError` with the line."""
        try:
            return model.model_validate(value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = [*place, *first["loc"]]
            message = f"{'.'.join(map(str, where)) or 'the document'}: {first['msg']}"
            raise self.wrong(message, self.line_of(where) if line is None else line) from None

    def line_of(self, place: Place) -> int:
        """The line of a value in the document, or of the innermost value around it that is there."""
        text, position = self.text, _blank(self.text, 0)
        for key in place:
            inner = _inside(text, position, key)
            if inner is None:
                break
            position = inner
        return text.count("\n", 0, position) + 1


def _blank(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _inside(text: str, position: int, key: str | int) -> int | None:
    """Where the value of a key (of an object) or index (of an array) begins."""
    decoder = json.JSONDecoder()
    if text[position] not in "{[" or (text[position] == "{") != isinstance(key, str):
        return None
    is_object, number = text[position] == "{", 0
    position = _blank(text, position + 1)
    while text[position] not in "}]":
        name: str | int = number
        if is_object:
            name, position = decoder.raw_decode(text, position)
            position = _blank(text, _blank(text, position) + 1)
        if name == key:
            return position
        _, position = decoder.raw_decode(text, position)
        position = _blank(text, position)
        if text[position] == ",":
            position = _blank(text, position + 1)
        number += 1
    return None
