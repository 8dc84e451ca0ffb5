# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from tests.lint.layering import include_violations, process_starters
from tests.lint.tree import ROOT, tracked


def test_includes_follow_the_layers() -> None:
    assert include_violations(ROOT, tracked()) == []


def test_only_run_starts_processes() -> None:
    assert process_starters(ROOT, tracked()) == []


@pytest.mark.parametrize(
    ("path", "include", "why"),
    [
        ("src/base/a.c", '"shm/ring.h"', "src/base may not use src/shm"),
        ("src/engine/a.h", '"provider/prov.h"', "src/engine may not use src/provider"),
        ("src/tools/a.c", '"provider/prov.h"', "src/tools may not use src/provider"),
        ("src/spank/a.c", '"shm/ring.h"', "src/spank may not use src/shm"),
        ("src/engine/a.c", "<rdma/fabric.h>", "<rdma/fabric.h> may be included only in"),
        ("src/provider/a.c", "<slurm/spank.h>", "<slurm/spank.h> may be included only in"),
        ("src/ucx/a.c", '"provider/prov.h"', "src/ucx may not use src/provider"),
        ("src/net/a.c", "<uct/api/uct.h>", "<uct/api/uct.h> may be included only in"),
        ("src/shm/a.c", '"ring.h"', 'write the layer: "shm/ring.h"'),
        ("src/shm/a.c", '"../base/log.h"', "no header src/../base/log.h"),
        ("src/zebra/a.c", '"shm/ring.h"', "directory src/zebra is not in the table"),
        ("src/provider/a.c", "<mpi.h>", "<mpi.h> may be included only in"),
    ],
)
def test_bad_include_is_found(tmp_path: Path, path: str, include: str, why: str) -> None:
    for header in ("src/shm/ring.h", "src/provider/prov.h"):
        (tmp_path / header).parent.mkdir(parents=True)
        (tmp_path / header).write_text("")
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(f"#include <stdio.h>\n  #  include {include}\n")
    (found,) = include_violations(tmp_path, [Path(path)])
    assert found.startswith(f"{path}:2: {why}")


def test_good_includes_pass(tmp_path: Path) -> None:
    (tmp_path / "src/shm").mkdir(parents=True)
    (tmp_path / "src/provider").mkdir()
    (tmp_path / "src/shm/ring.h").write_text("")
    source = tmp_path / "src/provider/a.c"
    source.write_text('#include <rdma/fabric.h>\n#include "shm/ring.h"\n')
    assert include_violations(tmp_path, [Path("src/provider/a.c")]) == []


@pytest.mark.parametrize(
    "code",
    [
        "import subprocess",
        "from subprocess import run",
        "def f():\n    import multiprocessing.pool",
        "import os\nos.system('true')",
        "def f(:",
        "import os\nwith os.popen('true'):\n    pass",
    ],
)
def test_hidden_process_is_found(tmp_path: Path, code: str) -> None:
    package = tmp_path / "nearmetal"
    package.mkdir()
    (package / "cluster.py").write_text(code)
    (package / "core").mkdir()
    (package / "core/process.py").write_text(code)
    paths = [Path("nearmetal/cluster.py"), Path("nearmetal/core/process.py")]
    (found,) = process_starters(tmp_path, paths)
    assert found.startswith("nearmetal/cluster.py:")
