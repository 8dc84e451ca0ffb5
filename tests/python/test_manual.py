# SPDX-License-Identifier: Apache-2.0
"""The manual says what the code does: knobs, settings of MPIs, links, and commands to type."""

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nearmetal.cli.verbs import build_parser
from nearmetal.core.resources import tool
from nearmetal.job.mpi import Mpi, Provider
from nearmetal.job.mpi.installed import Installation
from nearmetal.job.mpi.settings import Request, settings_for

ROOT = Path(__file__).parents[2]
MAN = ROOT / "nearmetal/share/man"
PAGES = sorted(
    page
    for where in ("*.md", "docs/**/*.md", "nearmetal/share/man/*.md", "benchmarks/**/*.md")
    for page in ROOT.glob(where)
)
PROVIDER = (MAN / "fi_nearmetal.md").read_text()

HEADINGS = {
    Mpi.OPENMPI5: "Open MPI 5",
    Mpi.OPENMPI4: "Open MPI 4.1",
    Mpi.MPICH5: "MPICH 5",
    Mpi.IMPI: "Intel MPI 2021",
}
OF_THE_CLUSTER = {"I_MPI_ROOT", "I_MPI_PIN", "I_MPI_HYDRA_IFACE", "OPAL_PREFIX", "LD_LIBRARY_PATH"}
"""Set by `run` because of where it starts ranks, not because of the provider."""


def code_lines(page: Path) -> list[str]:
    """Return what stands in blocks of code, fenced or indented."""
    lines, fenced = [], False
    for line in page.read_text().splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            lines.append(line.strip().removeprefix("$ "))
    return lines


def allowed(knob: dict[str, Any]) -> str:
    if knob["kind"] == "UINT":
        power = ", a power of two" if knob["power_of_two"] else ""
        return f"{knob['min']} to {knob['max']}{power}"
    if knob["unit"] == "word":
        # The words stand behind the last colon of the reason, and before a comma.
        return str(knob["reason"].rpartition(": ")[2].partition(",")[0])
    if knob["kind"] == "LEVEL":
        return "error, warn, info, debug"
    return "comma list" if knob["unit"] == "list" else "path"


def test_the_table_of_knobs_is_that_of_the_code() -> None:
    told = subprocess.run(
        [tool("nearmetal-info"), "--abi"], capture_output=True, check=True, timeout=60
    )
    expected = [
        (
            f"| `{knob['name']}` | {'`' + knob['default'] + '`' if knob['default'] else ''} "
            f"| {allowed(knob)} | {knob['unit']} | {knob['reason']} |"
        )
        for knob in json.loads(told.stdout)["knobs"]
    ]
    assert re.findall(r"^\| `NEARMETAL_.*$", PROVIDER, re.MULTILINE) == expected


@pytest.mark.parametrize("mpi", list(Mpi), ids=lambda mpi: mpi.value)
def test_the_settings_of_each_mpi_are_those_of_run(mpi: Mpi) -> None:
    section = PROVIDER.split(f"**{HEADINGS[mpi]}", 1)[1].split("\n**", 1)[0]
    installation = Installation(mpi, Path("/mpi"))
    request = Request(Provider.NEARMETAL, Path("LIB"), Path("DIR"))
    settings = settings_for(installation, request)
    for name, value in settings.env.items():
        if name not in OF_THE_CLUSTER and "ALLOW_RUN_AS_ROOT" not in name:
            assert f"{name}={value}" in section
    assert " ".join(settings.options) in section


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", page.read_text())
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_page_of_the_manual_that_is_named_exists(page: Path) -> None:
    named = set(
        re.findall(r"\b((?:nearmetal(?:-[a-z]+)?|fi_nearmetal)\([157]\))", page.read_text())
    )
    titles = {p.read_text().splitlines()[0].removeprefix("# ") for p in MAN.glob("*.md")}
    assert named <= titles


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_that_are_shown_can_be_typed(page: Path) -> None:
    shown = [line for line in code_lines(page) if re.match(r"nearmetal [a-z]", line)]
    for line in shown:
        if not re.search(r"\[-|\||\.\.\.|\bSPEC\b|\bVERB\b", line):  # a synopsis
            build_parser().parse_args(shlex.split(line, comments=True)[1:])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_targets_of_make_that_are_named_exist(page: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    code = re.findall(r"`make ([a-z-]+)`", page.read_text())
    code += re.findall(r"^make ([a-z-]+)", "\n".join(code_lines(page)), re.MULTILINE)
    assert set(code) <= set(targets)


def test_examples_that_are_named_exist() -> None:
    named = {n for page in PAGES for n in re.findall(r"examples/[\w.-]+\.yaml", page.read_text())}
    assert len(named) > 1
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []
