# SPDX-License-Identifier: Apache-2.0
"""The list of what packages hold, as SPDX 2.3: `sbom.py VERSION SECONDS` prints it.

SECONDS is the time of the last change. Versions and digests are those of the lock file, from which
the packages are built; licences are what the packages declare.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import wheels

_NONE = "NOASSERTION"
_LICENCE = re.compile(r"[A-Za-z0-9.+-]+( (OR|AND|WITH) [A-Za-z0-9.+-]+)*")
_EXPRESSIONS = {
    "MIT": "MIT",
    "MIT License": "MIT",
    "MPL-2.0": "MPL-2.0",
    "LGPL-2.1-only": "LGPL-2.1-only",
    "Apache Software License": "Apache-2.0",
}
"""Licences in the fields of old form that have one expression; "BSD License" has several."""


def _declared(name: str) -> str:
    """Return the licence as an expression of SPDX; packages of old form only have words."""
    said = metadata.metadata(name)
    found = said.get("License-Expression", "") or ""
    if _LICENCE.fullmatch(found):
        return found
    old = [said.get("License", "") or "", *(said.get_all("Classifier") or [])]
    words = {_EXPRESSIONS.get(text.rpartition(":: ")[2], "") for text in old} - {""}
    return words.pop() if len(words) == 1 else _NONE


def _package(name: str, pin: str) -> dict[str, Any]:
    version = re.split(r"[\s;]", pin.partition("==")[2])[0]
    digests = sorted(re.findall(r"--hash=sha256:([0-9a-f]{64})", pin))
    return {
        "SPDXID": f"SPDXRef-{name}",
        "name": name,
        "versionInfo": version,
        "downloadLocation": _NONE,
        "filesAnalyzed": False,
        "licenseConcluded": _NONE,
        "licenseDeclared": _declared(name),
        "copyrightText": _NONE,
        "comment": "SHA-256 of one of: " + " ".join(digests),
        "externalRefs": [
            {
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": f"pkg:pypi/{name}@{version}",
            }
        ],
    }


def document(version: str, seconds: int) -> dict[str, Any]:
    """Return the document."""
    pins = wheels.locked()
    packages = [_package(name, pins[name]) for name in wheels.ours()]
    main = {
        "SPDXID": "SPDXRef-nearmetal",
        "name": "nearmetal",
        "versionInfo": version,
        "downloadLocation": _NONE,
        "filesAnalyzed": False,
        "licenseConcluded": "Apache-2.0",
        "licenseDeclared": "Apache-2.0",
        "copyrightText": _NONE,
    }
    text = json.dumps(packages, sort_keys=True).encode()
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"nearmetal-{version}",
        "documentNamespace": f"urn:sha256:{hashlib.sha256(text).hexdigest()}:nearmetal-{version}",
        "creationInfo": {
            "created": datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": ["Tool: nearmetal-sbom"],
        },
        "packages": [main, *packages],
        "relationships": [
            {
                "spdxElementId": "SPDXRef-DOCUMENT",
                "relationshipType": "DESCRIBES",
                "relatedSpdxElement": "SPDXRef-nearmetal",
            },
            *(
                {
                    "spdxElementId": "SPDXRef-nearmetal",
                    "relationshipType": "CONTAINS",
                    "relatedSpdxElement": package["SPDXID"],
                }
                for package in packages
            ),
        ],
    }


if __name__ == "__main__":
    if len(sys.argv) != 3:  # noqa: PLR2004 - a version and a time
        sys.exit(__doc__)
    print(json.dumps(document(sys.argv[1], int(sys.argv[2])), indent=1))
