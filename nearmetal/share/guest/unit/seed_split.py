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


def public(seed: dict[str, Any]) -> list[str]:
    """Return what nobody need keep secret, of the node and of the cluster."""
    ssh = {k: v for k, v in seed["ssh"].items() if k not in {"host_key", "node_key"}}
    cluster = {key: seed[key] for key in ("version", "cluster", "nodes")}
    return [f"public.node={_compact(seed | {'ssh': ssh})}", f"public.cluster={_compact(cluster)}"]


def _compact(value: Any) -> str:
    """Return JSON as jq writes it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


if __name__ == "__main__":
    whole = json.loads(Path(sys.argv[1]).read_text())
    sys.stdout.write("\n".join([*public(whole), *lines(whole, "")]) + "\n")
