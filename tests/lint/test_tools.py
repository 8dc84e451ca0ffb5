# SPDX-License-Identifier: Apache-2.0
"""Formatters, type checkers and analyzers, each shown to fail on a bad example."""

import hashlib
import subprocess
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.lint.tree import C_SUFFIXES, ROOT, VENV_BIN, tracked

PYPROJECT = ROOT / "pyproject.toml"
PURE = (
    "config",
    "cluster/spec",
    "cluster/diff.py",
    "cluster/move",
    "evidence",
    "report",
    "advise",
    "host/plan.py",
)
BACKENDS_PURE = ("spec*", "plan.py")
NOT_PURE = {"__init__.py", "__pycache__", "runner"}  # in study/
C_FLAGS = ["-std=gnu17", "-D_GNU_SOURCE", '-DNM_VERSION="0"', f"-I{ROOT / 'src'}"]


def run_tool(argv: Sequence[str | Path], cwd: Path = ROOT) -> tuple[int, str]:
    done = subprocess.run(
        argv, cwd=cwd, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return done.returncode, done.stdout


def passes(argv: Sequence[str | Path], cwd: Path = ROOT) -> None:
    status, output = run_tool(argv, cwd)
    assert status == 0, output


def fails(argv: Sequence[str | Path], expected: str, cwd: Path = ROOT) -> None:
    status, output = run_tool(argv, cwd)
    assert status != 0
    assert expected in output


CLANG_FORMAT: list[str | Path] = [
    "clang-format",
    "--dry-run",
    "-Werror",
    f"--style=file:{ROOT / '.clang-format'}",
]
RUFF_CHECK: list[str | Path] = [VENV_BIN / "ruff", "check", "--no-cache", "--config", PYPROJECT]
RUFF_FORMAT: list[str | Path] = [
    VENV_BIN / "ruff",
    "format",
    "--no-cache",
    "--check",
    "--config",
    PYPROJECT,
]
MYPY: list[str | Path] = [VENV_BIN / "mypy", "--config-file", PYPROJECT]


def test_c_format() -> None:
    passes([*CLANG_FORMAT, *(path for path in tracked() if path.suffix in C_SUFFIXES)])


def test_c_format_fails(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int main(void){return 0;}\n")
    fails([*CLANG_FORMAT, tmp_path / "a.c"], "code should be clang-formatted")


def _tidy(path: Path) -> tuple[int, str]:
    config = f"--config-file={ROOT / '.clang-tidy'}"
    # Fault points are in the build with -Dfaults=true only, and with them the file that hits them.
    more = ["-DNM_FAULTS"] if path.name == "fault.c" else []
    if path.parent.name == "ucx":
        more = ["-isystem", str(ROOT / "build/ucx/libucx/include")]
    return run_tool(["clang-tidy", "--quiet", config, path, "--", *C_FLAGS, *more])


def _tidy_once(path: Path, headers: bytes) -> str:
    """Analyze a source unless the same bytes passed before; return the findings."""
    digest = hashlib.sha256(headers + path.read_bytes()).hexdigest()
    passed = ROOT / "build/tidy" / digest
    if passed.exists():
        return ""
    status, output = _tidy(path)
    if status == 0:
        passed.parent.mkdir(parents=True, exist_ok=True)
        passed.touch()
        return ""
    return output


@pytest.mark.timeout(900)
def test_c_analysis() -> None:
    files = [path for path in tracked() if path.parts[0] == "src"]
    headers = [ROOT / ".clang-tidy", *(ROOT / path for path in files if path.suffix == ".h")]
    common = "".join(C_FLAGS).encode() + b"".join(path.read_bytes() for path in headers)
    sources = [ROOT / path for path in files if path.suffix == ".c"]
    with ThreadPoolExecutor(2) as pool:
        findings = list(pool.map(lambda source: _tidy_once(source, common), sources))
    assert not any(findings), "\n".join(findings)


def test_c_analysis_fails(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text(
        "int f(int n);\nint f(int n)\n{\n\tint *p = 0;\n\treturn n ? 1 : *p;\n}\n"
    )
    status, output = _tidy(tmp_path / "a.c")
    assert status != 0
    assert "clang-analyzer-core.NullDereference" in output


def test_python_rules() -> None:
    passes([*RUFF_CHECK, "."])


def test_python_rules_fail(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import os\n")
    fails([*RUFF_CHECK, tmp_path / "a.py"], "F401")


def test_python_format() -> None:
    passes([*RUFF_FORMAT, "."])


def test_python_format_fails(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = {  'a':1 }\n")
    fails([*RUFF_FORMAT, tmp_path / "a.py"], "unformatted")


@pytest.mark.timeout(600)
def test_types() -> None:
    passes(MYPY)


def test_types_fail(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f(x: int) -> str:\n    return x\n")
    fails([*MYPY, tmp_path / "a.py"], "[return-value]")


def _contract(contract_id: str) -> dict[str, list[str]]:
    contracts = tomllib.loads(PYPROJECT.read_text())["tool"]["importlinter"]["contracts"]
    (found,) = (contract for contract in contracts if contract["id"] == contract_id)
    return dict(found)


def test_python_layers() -> None:
    lint: list[str | Path] = [VENV_BIN / "lint-imports", "--no-cache"]
    passes(lint)


@pytest.mark.parametrize(
    ("module", "code", "expected"),
    [
        (
            "core/errors",
            "import nearmetal.cluster.spec",
            "Every module uses only the layers below its own",
        ),
        (
            "study/runner/__init__",
            "import nearmetal.report",
            "nearmetal.study.runner -> nearmetal.report",
        ),
        ("zebra", "", "nearmetal.zebra"),
        (
            "cluster/diff",
            "import socket",
            "Specs, plans, evidence, studies and reports never reach processes",
        ),
        (
            "cluster/backends/empty/plan",
            "import nearmetal.core.process",
            "Specs, plans, evidence, studies and reports never reach processes",
        ),
        (
            "cluster/spec",
            "import nearmetal.core.process",
            "Specs, plans, evidence, studies and reports never reach processes",
        ),
    ],
)
def test_python_layers_fail(tmp_path: Path, module: str, code: str, expected: str) -> None:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT.read_text())
    # A small package with everything that the contracts name without parentheses, and more.
    contract = _contract("pure")["source_modules"]
    named = [name.replace("*", "empty").split(".")[1:] for name in contract]
    folders = {"core", "study/runner", *("/".join(p[:-1]) for p in named if p[1:])}
    folders |= {str(above) for folder in folders for above in Path(folder).parents} - {"."}
    modules = [
        "__init__",
        "core/errors",
        "core/process",
        *(f"{folder}/__init__" for folder in folders | {p[0] for p in named}),
        *("/".join(parts) for parts in named if parts[1:] and "/".join(parts) not in folders),
    ]
    for name in (*modules, module):
        path = tmp_path / f"nearmetal/{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    lint: list[str | Path] = [VENV_BIN / "python", "-I", "-c", LINT_HERE]
    if module != "zebra":
        passes(lint, cwd=tmp_path)
    (tmp_path / f"nearmetal/{module}.py").write_text(code)
    fails(lint, expected, cwd=tmp_path)


# lint-imports with the working directory first on the path, so that it finds the small package.
LINT_HERE = """
import sys
sys.path.insert(0, "")
from importlinter.cli import lint_imports
sys.exit(lint_imports(no_cache=True))
"""


def test_pure_packages_are_under_contract() -> None:
    package = ROOT / "nearmetal"
    pure = [package / name for name in PURE]
    pure += [path for path in (package / "study").iterdir() if path.name not in NOT_PURE]
    pure += [p for name in BACKENDS_PURE for p in package.glob(f"cluster/backends/*/{name}")]
    present = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in pure}
    contract = _contract("pure")["source_modules"]
    assert [name for name in present if not any(fnmatchcase(name, by) for by in contract)] == []


@pytest.mark.parametrize("path", [p for p in tracked() if p.suffix == ".sh" or p.name == "run"])
def test_shell_syntax(path: Path) -> None:
    passes(["bash", "-n", path])


def test_shell_syntax_fails(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("if true; then\n")
    fails(["bash", "-n", tmp_path / "a.sh"], "syntax error")
