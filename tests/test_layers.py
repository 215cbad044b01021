"""Imports point downward only, heavy libraries stay where they belong, and host code stands alone."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "orchestrator"

LAYER = {
    "errors": 5, "model": 5, "__init__": 5,
    "yamlfile": 4, "identity": 4, "inventory": 4, "sweep": 4, "plan": 4, "rendering": 4, "job": 4, "events": 4, "statistics": 4, "wording": 4,
    "transport": 3, "launch": 3, "archive": 3,
    "run": 2, "report": 2, "repro": 2, "doctor": 2, "environments": 2, "importers": 2, "compare": 2,
    "cli": 1, "api": 1, "__main__": 1,
}  # fmt: skip


def imports(path: Path) -> set[str]:
    """Absolute names of everything a module imports, at any depth of the code."""
    found: set[str] = set()
    here = path.relative_to(ROOT).with_suffix("").parts
    package = list(here[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            found.update({stem} if node.module else set())
            found.update(f"{stem}.{alias.name}" for alias in node.names)
    return found


def modules() -> list[Path]:
    return sorted(
        p
        for p in PACKAGE.rglob("*.py")
        if "agent" not in p.relative_to(PACKAGE).parts and "_payloads" not in p.parts
    )


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_downward(path: Path) -> None:
    top = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert top in LAYER, f"{top} has no layer; give it one here and in docs/architecture.md"
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "orchestrator" or len(parts) < 2 or parts[1] not in LAYER:
            continue
        assert LAYER[parts[1]] >= LAYER[top], (
            f"{path.name} (layer {LAYER[top]}) imports {name} (layer {LAYER[parts[1]]})"
        )


@pytest.mark.parametrize(
    "path",
    [path for path in modules() if path.relative_to(PACKAGE).parts[0] != "transport"],
    ids=lambda p: str(p.relative_to(PACKAGE)),
)
def test_ssh_libraries_are_imported_in_transport_only(path: Path) -> None:
    assert not {n.split(".")[0] for n in imports(path)} & {"fabric", "paramiko", "invoke", "asyncssh"}


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_the_controller_never_imports_gpu_libraries(path: Path) -> None:
    assert not {n.split(".")[0] for n in imports(path)} & {"torch", "flashinfer", "sgl_kernel"}


def test_duckdb_is_opened_in_one_place_which_lets_it_download_nothing() -> None:
    openers = [
        path.relative_to(PACKAGE).as_posix()
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "duckdb.connect"
    ]
    assert openers == ["archive/duck.py"]


@pytest.mark.parametrize(
    ("folder", "extras"),
    [("orchestrator", {"notebook", "s3"}), ("tests", {"dev", "notebook", "s3"}), ("benchmarks", {"dev"})],
)
def test_every_library_that_is_imported_is_declared(folder: str, extras: set[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(line for e in extras for line in project["optional-dependencies"][e]),
    ]
    if folder != "orchestrator":
        wanted += (ROOT / "requirements-test.txt").read_text(encoding="utf-8").splitlines()
    declared = {canonical(found[0]) for line in wanted if (found := re.match(r"[\w.-]+", line))}
    if "moto" in declared:
        declared.add("boto3")  # see pyproject.toml
    distributions = packages_distributions()
    used = {
        name.split(".")[0]
        for path in (ROOT / folder).rglob("*.py")
        for name in imports(path)
        if name.split(".")[0] not in sys.stdlib_module_names
    }
    undeclared = {
        name
        for name in used
        if name in distributions and not declared & {canonical(d) for d in distributions[name]}
    }
    assert undeclared - {"orchestrator"} == set()


def canonical(distribution: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


@pytest.mark.parametrize("folder", ["orchestrator/agent", "payloads/harness"])
def test_host_code_imports_nothing_of_the_package(folder: str) -> None:
    files = sorted((ROOT / folder).glob("*.py"))
    assert files
    for path in files:
        for name in imports(path):
            assert not name.startswith("orchestrator.") or name.startswith("orchestrator.agent"), (
                f"{path}: {name}"
            )
