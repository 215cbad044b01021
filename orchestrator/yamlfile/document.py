"""Reading a YAML file into plain Python values, with the line of every one of them.

ruamel.yaml parses into nodes; values are built from them here, so that they are str, int, float, bool, None, list
and dict only, and so that duplicate keys and recursive anchors are refused with their lines.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.tag import Tag

from orchestrator.errors import FileError

from . import scalars

Loc = tuple[str | int, ...]
"""Where a value is: keys and indices from the top of the document."""

MAX_VALUES = 200_000
MAX_DEPTH = 100

_TAG = "tag:yaml.org,2002:"
_PLAIN = "plain"
# Line breaks to ruamel.yaml but ordinary characters to YAML 1.2; stood in for while it parses.
_NOT_BREAKS = "\x85\u2028\u2029"


class _UnguessedTags(VersionedResolver):
    """Leaves plain scalars unresolved, so that an explicit tag can be told from a guessed one."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        if kind is ScalarNode:
            return Tag(suffix=_PLAIN if implicit[0] else _TAG + "str")
        return super().resolve(kind, value, implicit)


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong, at a place of a document."""

    message: str
    loc: Loc = ()


class Document:
    """A YAML text: `data` in plain Python types, and the line and the source text of everything in it.

    Raises `FileError` for anything that is not one well-formed document. `first_line` is where `text` begins in
    the file, for YAML inside of something else.
    """

    def __init__(self, path: Path | str, text: str, *, first_line: int = 1) -> None:
        self.path = path
        self.text = text
        self._first_line = first_line
        self._warnings: list[tuple[int, Loc, str]] = []
        self._values = 0
        self._lines: dict[Loc, int] = {}
        self._source: dict[Loc, str] = {}
        self._stand_ins = _stand_ins(text)
        root = self._compose()
        self.data: Any = None if root is None else self._construct(root, (), ())

    def line(self, *loc: str | int) -> int:
        """The line of the deepest part of `loc` that the file has (1-based)."""
        while loc and loc not in self._lines:
            loc = loc[:-1]
        return self._lines.get(loc, self._first_line)

    def source(self, *loc: str | int) -> str | None:
        """A scalar as it is written in the file (without quotes); None for anything else."""
        return self._source.get(loc)

    def warnings(self, below: Iterable[str] = ()) -> list[str]:
        """What is read otherwise than people often expect; with `below`, only what stands under keys so named."""
        wanted = set(below)
        hits = [(line, text) for line, loc, text in self._warnings if not wanted or wanted & set(loc)]
        return [f"{self.path}:{line}: {text}" for line, text in dict.fromkeys(hits)]

    def mapping(self, what: str) -> dict[str, Any]:
        """The document as a mapping. Raises `FileError` when it is empty or something else."""
        if self.data is None:
            raise FileError(f"is empty; {what} is a mapping (`key: value`)", path=self.path)
        if not isinstance(self.data, dict):
            raise self.error(f"{what} is a mapping (`key: value`), and this is not")
        return self.data

    def error(self, message: str, *loc: str | int) -> FileError:
        """A refusal that names this file and the line of `loc`."""
        return FileError(message, path=self.path, line=self.line(*loc))

    def errors(self, faults: Iterable[Fault]) -> FileError:
        """One refusal for several faults, each with its own line, in the file's order."""
        return refusal(self.path, [(self.line(*fault.loc), fault.message) for fault in faults])

    # -- building -----------------------------------------------------------------------------------------

    def _compose(self) -> Node | None:
        text = self.text
        for char, stand_in in self._stand_ins.items():
            text = text.replace(char, stand_in)
        parser = YAML(typ="safe", pure=True)
        parser.Resolver = _UnguessedTags
        try:
            return cast("Node | None", parser.compose(text))
        except MarkedYAMLError as exc:
            mark = exc.problem_mark or exc.context_mark
            line = self._first_line if mark is None else mark.line + self._first_line
            raise FileError(_parse_problem(exc), path=self.path, line=line) from None
        except ReaderError as exc:
            line = text.count("\n", 0, exc.position) + self._first_line
            message = f"character U+{exc.character:04X} is not allowed in YAML"
            raise FileError(message, path=self.path, line=line) from None
        except RecursionError:
            raise FileError("is nested too deeply", path=self.path) from None

    def _construct(self, node: Node, loc: Loc, above: tuple[Node, ...]) -> Any:
        self._guard(node, above)
        self._lines.setdefault(loc, self._line(node))
        if isinstance(node, ScalarNode):
            return self._scalar(node, loc)
        if node.tag not in (_TAG + "map", _TAG + "seq"):
            raise self._refusal(node, f"unknown tag {node.tag}")
        above = (*above, node)
        if isinstance(node, SequenceNode):
            return [self._construct(item, (*loc, i), above) for i, item in enumerate(node.value)]
        out: dict[str, Any] = {}
        for name, (key, value) in self._pairs(node, above).items():
            self._lines[(*loc, name)] = self._line(key)
            out[name] = self._construct(value, (*loc, name), above)
        return out

    def _pairs(self, node: Node, above: tuple[Node, ...]) -> dict[str, tuple[Node, Node]]:
        """A mapping's keys: first those merged in (`<<`) that it does not have itself, then its own."""
        own: dict[str, tuple[Node, Node]] = {}
        merged: dict[str, tuple[Node, Node]] = {}
        merge_key: Node | None = None
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                raise self._refusal(key, "a key is text, not a list or a mapping")
            name = self._text(key)
            is_merge = name == "<<" and key.tag == _PLAIN
            earlier = merge_key if is_merge else own.get(name, (None,))[0]
            if earlier is not None:
                raise self._refusal(key, f"duplicate key {name!r}, first given on line {self._line(earlier)}")
            if not is_merge:
                own[name] = (key, value)
                continue
            merge_key = key
            for source in value.value if isinstance(value, SequenceNode) else [value]:
                self._guard(source, above)
                if not isinstance(source, MappingNode):
                    raise self._refusal(key, "`<<` merges a mapping or a list of mappings")
                for inherited, pair in self._pairs(source, (*above, source)).items():
                    merged.setdefault(inherited, pair)
        return {**{name: pair for name, pair in merged.items() if name not in own}, **own}

    def _scalar(self, node: ScalarNode, loc: Loc) -> scalars.JsonScalar:
        text = self._text(node)
        self._source[loc] = text
        tag = str(node.tag)
        if tag not in ("!", _PLAIN, *(_TAG + name for name in ("str", "int", "float", "bool", "null"))):
            raise self._refusal(node, f"unknown tag {tag}")
        try:
            if tag != _PLAIN:
                return scalars.tagged(text, "str" if tag == "!" else tag.removeprefix(_TAG))
            value = scalars.resolve(text)
        except ValueError as exc:
            raise self._refusal(node, str(exc)) from None
        if warning := scalars.surprise(text, value):
            self._warnings.append((self._line(node), loc, warning))
        return value

    def _text(self, node: Node) -> str:
        text = str(node.value)
        for char, stand_in in self._stand_ins.items():
            text = text.replace(stand_in, char)
        try:
            # "\ud83d\ude00", as JSON writes it, is one character
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise self._refusal(node, "half of a surrogate pair is no text") from None

    def _guard(self, node: Node, above: tuple[Node, ...]) -> None:
        """Anchors make small files large, or endless."""
        self._values += 1
        if self._values > MAX_VALUES:
            raise self._refusal(node, f"more than {MAX_VALUES} values (anchors that repeat each other?)")
        if any(node is outer for outer in above):
            raise self._refusal(node, "this anchor contains itself")
        if len(above) > MAX_DEPTH:
            raise self._refusal(node, "nested too deeply")

    def _line(self, node: Node) -> int:
        return int(node.start_mark.line) + self._first_line

    def _refusal(self, node: Node, message: str) -> FileError:
        return FileError(message, path=self.path, line=self._line(node))


def refusal(path: Path | str, faults: Iterable[tuple[int | None, str]]) -> FileError:
    """One refusal for several faults (line and message), in the file's order, each said once."""
    lines = sorted(dict.fromkeys(faults), key=lambda fault: fault[0] or 0)
    (first_line, first), rest = lines[0], lines[1:]
    more = [f"{path}:{line}: {text}" if line else f"{path}: {text}" for line, text in rest]
    return FileError("\n".join([first, *more]), path=path, line=first_line)


def read_text(path: Path, what: str = "file") -> str:
    """A UTF-8 text file, without its byte-order mark and with `\\n` line ends. Raises `FileError`."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise FileError(f"no such {what}", path=path) from None
    except IsADirectoryError:
        raise FileError(f"is a folder, not a {what}", path=path) from None
    except OSError as exc:
        raise FileError(f"cannot be read: {exc.strerror}", path=path) from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = raw.count(b"\n", 0, exc.start) + 1
        raise FileError(f"is not UTF-8 (byte 0x{raw[exc.start]:02x})", path=path, line=line) from None
    return text.replace("\r\n", "\n")


def load(path: Path, what: str = "file") -> Document:
    """Read a YAML file. Raises `FileError` with the line of whatever is wrong."""
    return Document(path, read_text(path, what))


def _stand_ins(text: str) -> dict[str, str]:
    """A private character that the text does not have, for each of those that ruamel.yaml takes for line breaks."""
    present = set(text)
    spare = (chr(code) for code in range(0xE000, 0xF900) if chr(code) not in present)
    return {char: next(spare) for char in _NOT_BREAKS if char in present}


def _parse_problem(exc: MarkedYAMLError) -> str:
    problem = str(exc.problem or exc.context or "is not YAML")
    if "'\\t' that cannot start" in problem:
        return "a tab where YAML wants spaces"
    if "another document" in problem:
        return "a second document (`---`); one file holds one"
    return problem
