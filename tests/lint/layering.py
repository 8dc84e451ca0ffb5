# SPDX-License-Identifier: Apache-2.0
"""Who may use whom: the includes of the C code, the process-starting imports of the Python code."""

import ast
import re
from collections.abc import Iterable
from pathlib import Path

from tests.lint.tree import C_SUFFIXES, finding, lines

# A directory of src/ and the directories whose headers it may include, besides its own.
LAYERS = ("base", "shm", "vmseg", "connect", "transport", "engine", "provider")
MAY_USE = {layer: frozenset(LAYERS[:index]) for index, layer in enumerate(LAYERS)} | {
    "device": frozenset({"base"}),
    "heap": frozenset({"base"}),
    "net": frozenset(LAYERS) - {"engine", "provider"},
    "provider": frozenset(LAYERS) | {"device", "net"},
    "tools": frozenset(LAYERS) - {"provider"} | {"device"},
    "spank": frozenset({"base"}),
    "ucx": frozenset(LAYERS) - {"engine", "provider"},
}
# The first part of a foreign header's name and the folders that may include it.
FOREIGN = {
    "rdma": ("src/net/", "src/provider/", "benchmarks/", "tests/"),
    "slurm": ("src/spank/",),
    "ucp": ("src/ucx/", "tests/"),
    "ucs": ("src/ucx/", "tests/"),
    "uct": ("src/ucx/", "tests/"),
    "infiniband": (),
    "mpi.h": ("benchmarks/mpi/", "tests/", "tools/setup/"),
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]')
PROCESS_MODULES = frozenset({"subprocess", "multiprocessing", "pty", "pexpect"})
PROCESS_CALLS = frozenset({"system", "popen"})
PROCESS_OWNER = Path("nearmetal/core/process.py")


def _include_problem(root: Path, path: Path, mark: str, header: str) -> str | None:
    top = Path(header).parts[0]
    if top in FOREIGN and not str(path).startswith(FOREIGN[top]):
        return f"<{header}> may be included only in {', '.join(FOREIGN[top]) or 'no folder'}"
    if path.parts[0] != "src" or mark == "<":
        return None
    layer = path.parts[1]
    if layer not in MAY_USE:
        return f"directory src/{layer} is not in the table of layers"
    if "/" not in header:
        return f'write the layer: "{layer}/{header}"'
    if not (root / "src" / header).is_file():
        return f"no header src/{header}"
    if top != layer and top not in MAY_USE[layer]:
        return f"src/{layer} may not use src/{top}"
    return None


def include_violations(root: Path, paths: Iterable[Path]) -> list[str]:
    """Find includes that go against the layers."""
    found = []
    sources = [path for path in paths if path.suffix in C_SUFFIXES]
    for path, number, line in lines(root, sources):
        if match := INCLUDE.match(line):
            problem = _include_problem(root, path, match[1], match[2])
            if problem:
                found.append(finding(path, number, problem))
    return found


def _starts_process(node: ast.AST) -> str | None:
    modules: list[str] = []
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        modules = [node.module or ""]
    for module in modules:
        if module.split(".")[0] in PROCESS_MODULES:
            return f"imports {module}"
    if (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
        and node.attr in PROCESS_CALLS
    ):
        return f"uses os.{node.attr}"
    return None


def process_starters(root: Path, paths: Iterable[Path]) -> list[str]:
    """Find modules of nearmetal, other than core/process.py, that start processes."""
    found = []
    for path in paths:
        if path.suffix != ".py" or path.parts[0] != "nearmetal" or path == PROCESS_OWNER:
            continue
        try:
            tree = ast.parse((root / path).read_text(), filename=str(path))
        except SyntaxError as error:
            found.append(finding(path, error.lineno or 1, error.msg))
            continue
        for node in ast.walk(tree):
            if what := _starts_process(node):
                number = getattr(node, "lineno", 1)
                found.append(finding(path, number, f"{what}; only {PROCESS_OWNER} may"))
    return found
