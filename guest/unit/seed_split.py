# SPDX-License-Identifier: Apache-2.0
"""What seed.sh does by jq, for images without it: JSON to lines `path.to.value=text`."""

import json
import sys
from pathlib import Path
from typing import Any


def lines(value: Any, path: str) -> list[str]:
    """Return one line per value that is no object and no list."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return [line for key, item in items for line in lines(item, f"{path}.{key}")]
    text = value if isinstance(value, str) else json.dumps(value)
    escaped = text.replace("\n", "\\n")
    return [f"{path.removeprefix('.')}={escaped}"]


if __name__ == "__main__":
    sys.stdout.write("\n".join(lines(json.loads(Path(sys.argv[1]).read_text()), "")) + "\n")
