# SPDX-License-Identifier: Apache-2.0
"""`nearmetal image`: build, list and remove images for virtual machines."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.cli.verbs import add_group, add_verb
from nearmetal.core.errors import ExitCode, UsageError
from nearmetal.core.process import LocalRunner
from nearmetal.image import (
    EXTRAS,
    Cache,
    build_image,
    cache_directory,
    expected_key,
    machine_mirror,
    named_mirror,
    parts_here,
)

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.verbs import Subparsers
    from nearmetal.cli.view import View
    from nearmetal.image import Mirror

_MIB = 1 << 20
_SUMMARY = "build, list and remove images for virtual machines"


def register(subparsers: Subparsers) -> None:
    """Add the group and its verbs."""
    verbs = add_group(subparsers, "image", _SUMMARY, "nearmetal image build")
    parser = add_verb(
        verbs,
        "build",
        build,
        "build an image, unless the cache holds it",
        "nearmetal image build --with compilers",
    )
    _add_cache(parser)
    parser.add_argument(
        "--mirror",
        metavar="URI",
        help="Debian archive for the packages (default: the archive that apt of this machine uses)",
    )
    parser.add_argument(
        "--with",
        dest="extras",
        metavar="EXTRA",
        action="append",
        default=[],
        choices=EXTRAS,
        help=f"additional content of the image: {', '.join(EXTRAS)}; may be repeated",
    )
    parser = add_verb(verbs, "list", show, "list the images in the cache", "nearmetal image list")
    _add_cache(parser)
    parser = add_verb(
        verbs, "remove", remove, "remove images from the cache", "nearmetal image remove --all"
    )
    _add_cache(parser)
    parser.add_argument(
        "keys", nargs="*", metavar="KEY", help="key of an image, from `nearmetal image list`"
    )
    parser.add_argument("--all", action="store_true", help="remove all images")


def _add_cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cache",
        type=Path,
        metavar="DIR",
        help="directory of the images (default: $NEARMETAL_CACHE_DIR, "
        "/var/cache/nearmetal as root, else ~/.cache/nearmetal)",
    )


def _cache(args: argparse.Namespace) -> Cache:
    return Cache(args.cache.absolute() if args.cache else cache_directory())


def build(args: argparse.Namespace, view: View) -> int:
    """Build what is missing, and tell where it is."""
    cache, runner = _cache(args), LocalRunner()
    given = None if args.mirror is None else named_mirror(args.mirror)
    parts = parts_here(sorted(set(args.extras)))

    def mirror() -> Mirror:
        return given or machine_mirror(runner)

    with view.steps("image build") as steps:
        image = build_image(cache, parts, runner, progress=steps, mirror=mirror)
    data = {
        "key": image.key,
        "kernel": str(image.kernel),
        "initrd": str(image.initrd),
        "root": str(image.root),
        "append": image.append,
    }
    view.result({"image": data}, [f"{name}: {value}" for name, value in data.items()])
    return ExitCode.DONE


def show(args: argparse.Namespace, view: View) -> int:
    """List the images; the one that is used now is marked."""
    cache = _cache(args)
    used = expected_key(parts_here())
    entries = cache.entries()
    view.result(
        {
            "cache": str(cache.root),
            "images": [vars(entry) | {"default": entry.key == used} for entry in entries],
        },
        [] if entries else [f"no images in {cache.root}"],
    )
    if entries:
        rows = [
            [
                entry.key,
                f"{entry.nr_bytes / _MIB:.0f} MiB",
                _ago(entry.made),
                entry.problem or ("the one used by default" if entry.key == used else ""),
            ]
            for entry in entries
        ]
        view.table(("image", "size", "made", ""), rows)
    return ExitCode.DONE if not any(entry.problem for entry in entries) else ExitCode.CHECKS_FAILED


def remove(args: argparse.Namespace, view: View) -> int:
    """Remove images and what only they need."""
    cache = _cache(args)
    if bool(args.keys) == args.all:
        raise UsageError("name images, or say --all", "see `nearmetal image list`")
    with cache.locked(lambda: view.note("waiting for another build to end")):
        keys = [entry.key for entry in cache.entries()] if args.all else sorted(set(args.keys))
        gone = cache.remove(keys)
    view.result({"removed": gone}, [f"removed {name}" for name in gone] or ["nothing to remove"])
    return ExitCode.DONE


def _ago(then: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(then))
