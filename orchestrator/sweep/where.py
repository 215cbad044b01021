"""The expressions of `where:`, over a case's parameters: comparisons, `and or not in`, and bounded arithmetic.

An expression is parsed to a syntax tree and walked; nothing of Python is reachable but the nodes named here, and no
expression can take long or much: no loops, no attributes, no calls but four, numbers of at most 4096 bits.
"""

from __future__ import annotations

import ast
import io
import keyword
import operator
import tokenize
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from orchestrator.yamlfile import suggestion

MAX_LENGTH = 2000
MAX_BITS = 4096

CONSTANTS = {"true": True, "false": False, "null": None}
FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "abs": abs, "len": len}

_KEYWORD = "parameter_named_"
_WORDS = {"and", "or", "not", "in"}
_COMPARE: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], bool]]] = {
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
    ast.In: ("in", lambda a, b: a in b),
    ast.NotIn: ("not in", lambda a, b: a not in b),
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv),
    ast.FloorDiv: ("//", operator.floordiv),
    ast.Mod: ("%", operator.mod),
    ast.Pow: ("**", operator.pow),
}


class WhereError(ValueError):
    """An expression that cannot be read, or has no value for some case."""


class Where:
    """A parsed expression. Raises `WhereError` for anything outside the language, and for names not in `known`."""

    def __init__(self, text: str, known: Iterable[str]) -> None:
        self.text = text
        self._known = dict.fromkeys(known)
        if len(text) > MAX_LENGTH:
            raise WhereError(f"is longer than {MAX_LENGTH} characters")
        try:
            tree = ast.parse(self._escape_keywords(text.strip()), mode="eval").body
            self._check(tree)
        except SyntaxError as exc:
            raise WhereError(f"{text!r} is no expression: {exc.msg}") from None
        except (ValueError, RecursionError, MemoryError) as exc:
            if isinstance(exc, WhereError):
                raise
            raise WhereError(f"{text!r} is no expression") from None
        self._tree = tree

    def holds(self, params: Mapping[str, Any]) -> bool:
        """Whether it holds for a case; a parameter the case does not have is null. Raises `WhereError`."""
        try:
            return bool(_value(self._tree, params))
        except ZeroDivisionError:
            raise WhereError(f"{self.text!r} divides by zero") from None
        except OverflowError:
            raise WhereError(f"{self.text!r} leads to a number that is too large") from None

    def _escape_keywords(self, text: str) -> str:
        """A parameter may be called `class`; Python's parser must not see that."""
        clashing = {name for name in self._known if keyword.iskeyword(name)} - _WORDS
        if not clashing:
            return text
        try:
            tokens = [
                (kind, _KEYWORD + word if kind == tokenize.NAME and word in clashing else word)
                for kind, word, *_ in tokenize.generate_tokens(io.StringIO(text).readline)
            ]
        except tokenize.TokenError:
            return text
        return tokenize.untokenize(tokens).strip()

    def _check(self, node: ast.AST) -> None:
        match node:
            case ast.Constant(value=value) if value is None or type(value) in (bool, int, float, str):
                return
            case ast.Name(id=name):
                self._check_name(name.removeprefix(_KEYWORD))
                return
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
                children: list[ast.expr] = args
            case ast.BoolOp(values=values):
                children = values
            case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.UAdd(), operand=operand):
                children = [operand]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                children = [left, right]
            case ast.Compare(left=left, ops=ops, comparators=rest) if all(type(op) in _COMPARE for op in ops):
                children = [left, *rest]
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                children = elements
            case _:
                raise WhereError(
                    f"{self.text!r}: `{ast.unparse(node)}` is not part of the language (comparisons, and, or, not, "
                    f"in, arithmetic, {', '.join(FUNCTIONS)})"
                )
        for child in children:
            self._check(child)

    def _check_name(self, name: str) -> None:
        if name not in self._known and name not in CONSTANTS:
            known = ", ".join(self._known) or "none"
            raise WhereError(
                f"{self.text!r}: no parameter {name!r}{suggestion(name, self._known)}; there are: {known}"
            )


def _value(node: ast.AST, params: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            name = name.removeprefix(_KEYWORD)
            return params[name] if name in params else CONSTANTS.get(name)
        case ast.Call(func=ast.Name(id=name), args=args):
            values = [_value(arg, params) for arg in args]
            return _guarded(f"{name}(…)", FUNCTIONS[name], *values)
        case ast.BoolOp(op=op, values=parts):
            stops_at = isinstance(op, ast.Or)
            result: Any = None
            for part in parts:
                result = _value(part, params)
                if bool(result) is stops_at:
                    break
            return result
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, params)
        case ast.UnaryOp(op=op, operand=operand):
            number = _number(_value(operand, params))
            return -number if isinstance(op, ast.USub) else number
        case ast.BinOp(left=left, op=op, right=right):
            return _arithmetic(type(op), _value(left, params), _value(right, params))
        case ast.Compare(left=left, ops=ops, comparators=rest):
            first = _value(left, params)
            for comparison, right in zip(ops, rest, strict=True):
                sign, compare = _COMPARE[type(comparison)]
                second = _value(right, params)
                if not _guarded(f"{_shown(first)} {sign} {_shown(second)}", compare, first, second):
                    return False
                first = second
            return True
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_value(element, params) for element in elements]
    raise AssertionError(f"unchecked node {node!r}")


def _guarded(shown: str, function: Callable[..., Any], *values: Any) -> Any:
    try:
        return function(*values)
    except (TypeError, ValueError) as exc:
        raise WhereError(f"{shown} has no value ({exc})") from None


def _arithmetic(op: type[ast.operator], left: Any, right: Any) -> Any:
    sign, function = _ARITHMETIC[op]
    a, b = _number(left), _number(right)
    if op is ast.Pow and isinstance(a, int) and isinstance(b, int) and a.bit_length() * max(b, 0) > MAX_BITS:
        raise WhereError(f"{a} ** {b} is too large a number")
    result = _guarded(f"{_shown(a)} {sign} {_shown(b)}", function, a, b)
    if isinstance(result, int) and result.bit_length() > MAX_BITS:
        raise WhereError("leads to a number that is too large")
    return _number(result)


def _number(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise WhereError(f"{_shown(value)} is no number to calculate with")
    return value


def _shown(value: Any) -> str:
    return (
        {None: "null", True: "true", False: "false"}[value]
        if value is None or isinstance(value, bool)
        else repr(value)
    )
