# SPDX-License-Identifier: Apache-2.0
"""What a built provider shows to, and wants from, the process that loads it."""

import re
import subprocess
from pathlib import Path

EXPORTED = frozenset({"fi_prov_ini"})
LIBFABRIC_FUNCTION = re.compile(r"^fi_[a-z_]+$")


def _symbols(library: Path, which: str) -> set[str]:
    listing = subprocess.run(
        ["nm", "--dynamic", which, "--format=posix", library],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return {line.split()[0].partition("@")[0] for line in listing.splitlines() if line}


def defined_symbols(library: Path) -> set[str]:
    """Return the names that a library shows to who loads it."""
    return _symbols(library, "--defined-only")


def export_problems(library: Path) -> list[str]:
    """Find symbols that should be hidden, that are missing, or that tie it to one libfabric."""
    defined = defined_symbols(library)
    wanted = _symbols(library, "--undefined-only")
    return [
        *(f"exports {name}" for name in sorted(defined - EXPORTED)),
        *(f"does not export {name}" for name in sorted(EXPORTED - defined)),
        *(
            f"needs {name} from libfabric, which binds its oldest version"
            for name in sorted(wanted)
            if LIBFABRIC_FUNCTION.match(name)
        ),
    ]
