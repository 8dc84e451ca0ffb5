# SPDX-License-Identifier: Apache-2.0
"""What names.sh does by jq, for images without it: the open halves of a seed."""

import json
import sys

if __name__ == "__main__":
    seed = json.load(sys.stdin)
    if sys.argv[1] == "cluster":
        seed = {key: seed[key] for key in ("version", "cluster", "nodes")}
    else:
        for secret in ("host_key", "node_key"):
            del seed["ssh"][secret]
    json.dump(seed, sys.stdout, indent=2)
    sys.stdout.write("\n")
