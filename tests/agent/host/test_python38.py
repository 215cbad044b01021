"""What is uploaded to hosts must run under the Python they have, from 3.8 on."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
UPLOADED = sorted([*ROOT.glob("orchestrator/agent/*.py"), *ROOT.glob("payloads/harness/*.py")])

# What the libraries gained after 3.8 and is easily used without a thought. (The syntax is checked by the parser.)
LATER_METHODS = {
    "removeprefix",
    "removesuffix",
    "is_relative_to",
    "readlink",
    "with_stem",
    "bit_count",
    "hardlink_to",
}
LATER_FUNCTIONS = {
    ("functools", "cache"),
    ("math", "lcm"),
    ("itertools", "pairwise"),
    ("itertools", "batched"),
    ("os", "pidfd_open"),
    ("asyncio", "to_thread"),
    ("random", "randbytes"),
    ("time", "pthread_getcpuclockid"),
}
LATER_KEYWORDS = {("zip", "strict"), ("Popen", "process_group"), ("Popen", "user"), ("run", "process_group")}
LATER_MODULES = {"graphlib", "zoneinfo", "tomllib"}


def test_everything_that_is_uploaded_is_looked_at() -> None:
    assert {"stub.py", "devices.py", "leases.py", "procs.py"} <= {path.name for path in UPLOADED}


@pytest.mark.parametrize("path", UPLOADED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_it_is_python_3_8(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 8))
    assert list(later(tree)) == []


def later(tree: ast.Module) -> list[str]:
    """What would fail at run time under 3.8, with its line."""
    found = []
    postponed = any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            base = node.value.id if isinstance(node.value, ast.Name) else ""
            # os.readlink is old, Path.readlink is not.
            if (base, node.attr) in LATER_FUNCTIONS or (node.attr in LATER_METHODS and base != "os"):
                found.append(f"{node.lineno}: {base}.{node.attr}")
        elif isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            found += [
                f"{node.lineno}: {name}({kw.arg}=)"
                for kw in node.keywords
                if (name, kw.arg) in LATER_KEYWORDS
            ]
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names = (
                [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            )
            found += [
                f"{node.lineno}: import {name}" for name in names if name.split(".")[0] in LATER_MODULES
            ]
        elif isinstance(node, (ast.FunctionDef, ast.AnnAssign)) and not postponed:
            found += [
                f"{node.lineno}: {text}" for text in annotations(node) if "[" in text and text[0].islower()
            ]
    # Type aliases and base classes are evaluated even where annotations are not.
    for node in tree.body:
        if isinstance(node, ast.Assign):
            found += [
                f"{part.lineno}: {ast.unparse(part)} is evaluated"
                for part in subscripts(node.value)
                if isinstance(part.value, ast.Name)
                and part.value.id in ("list", "dict", "set", "tuple", "type")
            ]
    return found


def annotations(node: ast.FunctionDef | ast.AnnAssign) -> list[str]:
    if isinstance(node, ast.AnnAssign):
        return [ast.unparse(node.annotation)]
    given = [argument.annotation for argument in [*node.args.args, *node.args.kwonlyargs]] + [node.returns]
    return [ast.unparse(one) for one in given if one is not None]


def subscripts(value: ast.expr) -> list[ast.Subscript]:
    """Subscripts that are evaluated as the module loads: not those inside functions and lambdas."""
    inside = [
        node for part in ast.walk(value) if isinstance(part, ast.Lambda) for node in ast.walk(part.body)
    ]
    return [node for node in ast.walk(value) if isinstance(node, ast.Subscript) and node not in inside]


@pytest.mark.parametrize(
    "source",
    [
        "'a'.removeprefix('b')",
        "import functools\n@functools.cache\ndef f(): pass",
        "zip(a, b, strict=True)",
        "def f(x: list[int]): pass",
        "A = dict[str, int]",
        "import tomllib",
    ],
)
def test_the_check_finds_what_3_8_has_not(source: str) -> None:
    assert later(ast.parse(source, feature_version=(3, 8)))


@pytest.mark.parametrize("source", ["match x:\n case 1: pass", "try: pass\nexcept* ValueError: pass"])
def test_the_parser_refuses_newer_syntax(source: str) -> None:
    with pytest.raises(SyntaxError):
        ast.parse(source, feature_version=(3, 8))
