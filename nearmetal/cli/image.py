# SPDX-License-Identifier: Apache-2.0
"""`nearmetal image`: build, list and remove images for virtual machines."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nearmetal.cli.arguments import add_yes
from nearmetal.core.errors import ExitCode, UsageError
from nearmetal.core.process import LocalRunner

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.verbs import VerbParser
    from nearmetal.cli.view import View
    from nearmetal.image import Cache, Mirror

_MIB = 1 << 20


def build_options(parser: VerbParser) -> None:
    """Add the arguments of `image build`."""
    from nearmetal.image.parts import APPLIANCES, EXTRAS

    list_options(parser)
    parser.option(
        "--mirror URI",
        "Debian archive for the packages (default: the archive that apt of this machine uses)",
    )
    parser.option(
        "--with EXTRA",
        f"additional content of the image, one of {', '.join(EXTRAS)}, see nearmetal-image(1); may be repeated",
        dest="extras",
        action="append",
        default=[],
        choices=EXTRAS,
    )
    parser.option(
        "--appliance NAME",
        f"image for one purpose, whose logins say what can be run: {' or '.join(APPLIANCES)}",
        choices=list(APPLIANCES),
    )
    parser.option(
        "--disk FILE",
        "also write a disk that boots by itself, for clouds (raw, BIOS, virtio)",
    )


def remove_options(parser: VerbParser) -> None:
    """Add the arguments of `image remove`."""
    list_options(parser)
    parser.option("keys KEY", "key of an image: its name in `nearmetal image list`", nargs="*")
    parser.option("--all", "remove all images")
    add_yes(parser)


def list_options(parser: VerbParser) -> None:
    """Add the argument of `image list`, which all verbs of images have."""
    parser.option(
        "--cache DIR",
        "directory of the images (default: $NEARMETAL_CACHE_DIR, "
        "/var/cache/nearmetal as root, else ~/.cache/nearmetal)",
    )


def _cache(args: argparse.Namespace) -> Cache:
    from nearmetal.image import Cache, cache_directory

    return Cache(args.cache.absolute() if args.cache else cache_directory())


def on_build(args: argparse.Namespace, view: View) -> int:
    """Build the missing parts of the image, and print its files."""
    from nearmetal.image import (
        DISK,
        build_image,
        machine_mirror,
        named_mirror,
        parts_here,
        write_disk,
    )

    cache, runner = _cache(args), LocalRunner()
    given = None if args.mirror is None else named_mirror(args.mirror)
    parts = parts_here({*args.extras, *([DISK] if args.disk else [])}, args.appliance)

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
    if args.disk is not None:
        write_disk(args.disk, image)
        data["disk"] = str(args.disk.absolute())
    view.result({"image": data}, [f"{name}: {value}" for name, value in data.items()])
    return ExitCode.DONE


def on_list(args: argparse.Namespace, view: View) -> int:
    """List the images; exit code 4 if one is damaged."""
    from nearmetal.image import expected_key, parts_here

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
                entry.problem or ("the default" if entry.key == used else ""),
            ]
            for entry in entries
        ]
        view.table(("image", "size", "made", ""), rows)
    return ExitCode.DONE if not any(entry.problem for entry in entries) else ExitCode.CHECKS_FAILED


def on_remove(args: argparse.Namespace, view: View) -> int:
    """Remove images, and the systems that only they need."""
    cache = _cache(args)
    if bool(args.keys) == args.all:
        raise UsageError("image remove needs KEY or --all", "see `nearmetal image list`")
    with cache.locked(lambda: view.note("waiting for another build to end")):
        keys = [entry.key for entry in cache.entries()] if args.all else sorted(set(args.keys))
        if keys:
            view.ask(f"remove {', '.join(keys)} from {cache.root}", yes=args.yes)
        gone = cache.remove(keys)
    view.result({"removed": gone}, [f"removed {name}" for name in gone] or ["nothing to remove"])
    return ExitCode.DONE


def _ago(then: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(then))
