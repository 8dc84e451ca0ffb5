# SPDX-License-Identifier: Apache-2.0
"""A small image for containers, made of files of this machine: a shell, Python and their libraries."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.system.local import UID

PYTHON = "/usr/bin/python3"
PROGRAMS = ("/bin/sh", "/bin/sleep", "/bin/cat", "/usr/bin/env", PYTHON)
_LIBRARY = Path("/usr/lib/python3.11")
_NOT_NEEDED = ("__pycache__", "test", "idlelib", "lib2to3", "ensurepip", "config-3.11*", "dist-*")
_MOUNTS = ("dev", "proc", "sys", "tmp", "run", "etc", "mnt", "root", "home", "var")


def make_image(directory: Path, shown: Iterable[str], files: Iterable[Path]) -> None:
    """Fill a directory. SHOWN: directories that will be mounted. FILES: their libraries come along."""
    for name in _MOUNTS:
        (directory / name).mkdir()
    for name in ("bin", "sbin", "lib", "lib64"):
        (directory / "usr" / name).mkdir(parents=True)
        (directory / name).symlink_to(f"usr/{name}")
    for path in shown:
        (directory / path[1:]).mkdir(parents=True, exist_ok=True)
    users = (("root", 0), ("mpi", UID))
    for name, form in (("passwd", "{0}:x:{1}:{1}::/:/bin/sh\n"), ("group", "{0}:x:{1}:\n")):
        (directory / "etc" / name).write_text("".join(form.format(*user) for user in users))
    here = Path(PYTHON).resolve().parent / "python3.11"
    shutil.copytree(
        _LIBRARY, directory / str(_LIBRARY)[1:], ignore=shutil.ignore_patterns(*_NOT_NEEDED)
    )
    dynamic = sorted(_LIBRARY.glob("lib-dynload/_ctypes.*.so"))
    for program in (*map(Path, PROGRAMS), here):
        _copy(program, directory)
    for library in _libraries((*map(Path, PROGRAMS), here, *dynamic, *files)):
        _copy(library, directory)


def _copy(path: Path, directory: Path) -> None:
    # The directories /bin and /lib are links into /usr, in the image as here.
    target = directory / str(path.parent.resolve() / path.name)[1:]
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copy(path, target)


def _libraries(files: Iterable[Path]) -> Iterator[Path]:
    words = ["ldd", *map(str, files)]
    said = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False).stdout
    for path in dict.fromkeys(re.findall(r"(?:=> |\t)(/(?:usr/)?lib(?:64)?/\S+) \(0x", said)):
        yield Path(path)
