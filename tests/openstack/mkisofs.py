# SPDX-License-Identifier: Apache-2.0
"""In place of genisoimage, for Nova's config drives: the same content by pycdlib.

mkisofs.py -o IMAGE ... -V LABEL DIRECTORY
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from pycdlib import PyCdlib


def main() -> None:
    """Write the image; the words between are those that Nova gives genisoimage."""
    words = sys.argv[1:]
    target, label = words[words.index("-o") + 1], words[words.index("-V") + 1]
    top = Path(words[-1])
    disc = PyCdlib()
    disc.new(interchange_level=3, joliet=3, rock_ridge="1.09", vol_ident=label)
    places = {top: ""}
    for number, path in enumerate(sorted(top.rglob("*"))):
        shown = f"/{path.relative_to(top)}"
        if path.is_dir():
            places[path] = f"{places[path.parent]}/D{number}"
            disc.add_directory(places[path], rr_name=path.name, joliet_path=shown)
        else:
            content = path.read_bytes()
            place = f"{places[path.parent]}/F{number}.;1"
            stream = io.BytesIO(content)
            disc.add_fp(stream, len(content), place, rr_name=path.name, joliet_path=shown)
    disc.write(target)
    disc.close()


main()
