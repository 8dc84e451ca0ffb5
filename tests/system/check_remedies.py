# SPDX-License-Identifier: Apache-2.0
"""Runs the remedies of `nearmetal check` as they are printed, where they reach only a test's own.

The files of a node are mounted over those of this machine, in a mount namespace of its own. What
a package manager changes further lies in an overlay of its own.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from typing import TYPE_CHECKING

from tests.python.check_nodes import DIFF
from tests.system.check_tree import PACKAGES, PROVIDER

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SAFE = re.compile(
    r"(echo [\w'-]+ >/sys/|for \w in /sys/|sysctl -w |ip link set |apt-get install "
    r"|mount (-o remount,[\w=]+ )?/|umount -l /srv && mount /srv$|mkdir -p -m |unset \w+$"
    r"|cat /etc/security/limits\.d/\*$"
    r"|echo '\* - \w+ \w+' >/etc/security/limits\.d/)"
)
"""Remedies that reach only what a test has put in the place of this machine's."""

FOLDERS = ("sys", "proc/sys")
OF_PACKAGES = ("var/lib/dpkg", "usr/lib/x86_64-linux-gnu/nearmetal")
MANAGE = """\
mkdir -p "$work"
mount -t tmpfs none "$work"
cd "$work"
mkdir upper changes root
mount -t overlay -o lowerdir=/,upperdir=upper,workdir=changes none root
mount --rbind /dev root/dev
mount --rbind /proc root/proc
mount --bind "$archive" root/mnt
mkdir -p "$tree/var/lib/dpkg/info" "$tree/var/lib/dpkg/updates" "$tree/var/lib/dpkg/triggers"
for place in $places; do
    mkdir -p "root/$place"
    mount --bind "$tree/$place" "root/$place"
done
rm -rf root/etc/apt/sources.list.d root/var/lib/apt/lists
mkdir -p root/var/lib/apt/lists/partial
echo 'deb [trusted=yes] file:/mnt ./' >root/etc/apt/sources.list
export DEBIAN_FRONTEND=noninteractive
chroot root apt-get -qq update
exec chroot root sh -ec "$command"
"""


def remedies(found: Iterable[str]) -> list[str]:
    """Return the commands that a test may run as root: none reaches this machine."""
    commands = sorted(set(found) - {DIFF})
    assert commands
    assert all(map(SAFE.match, commands)), commands
    return commands


def run(script: str, *namespaces: str, **variables: str) -> None:
    """Run a script in namespaces of its own; the shell knows the variables."""
    settings = [f"{name}={value}" for name, value in variables.items()]
    argv = ["unshare", "-m", *namespaces, "--propagation", "private", "env", *settings]
    done = subprocess.run(
        [*argv, "sh", "-ec", script], check=False, capture_output=True, timeout=120, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def repair(tree: Path, commands: Iterable[str], archive: Path, network: tuple[str, str]) -> None:
    """Run remedies with the files of a tree in the place of this machine's."""
    make, show = network
    mounts = [f"mount --bind {tree}/{place} /{place}" for place in FOLDERS]
    if make:
        text = "\n".join([make, *mounts, *commands, show.format(tree=tree)])
        run(text, "-n")
        return
    for command in commands:
        if command.startswith("apt-get "):
            own = {"archive": str(archive), "work": f"{archive}.work", "tree": str(tree)}
            run(MANAGE, **own, places=" ".join(OF_PACKAGES), command=command)
        else:
            run("\n".join([*mounts, command]))


def make_archive(folder: Path) -> Path:
    """Make an archive of packages, with those of the trees."""
    archive = folder / "archive"
    archive.mkdir()
    index = []
    for name, version in PACKAGES.items():
        root = folder / name
        (root / "DEBIAN").mkdir(parents=True)
        if name == "libnearmetal-fi":
            (root / PROVIDER).parent.mkdir(parents=True)
            (root / PROVIDER).write_text("")
        about = (
            f"Package: {name}\nVersion: {version}\nArchitecture: all\nSection: misc\n"
            f"Priority: optional\nMaintainer: Nearmetal <nearmetal@example.org>\n"
            f"Description: a package\n"
        )
        (root / "DEBIAN/control").write_text(about)
        file = archive / f"{name}.deb"
        argv = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(root), str(file)]
        subprocess.run(argv, check=True, capture_output=True, timeout=60)
        content = file.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        index.append(f"{about}Filename: ./{file.name}\nSize: {len(content)}\nSHA256: {digest}\n")
    (archive / "Packages").write_text("\n".join(index))
    return archive
