#!/usr/bin/python3 -I
# SPDX-License-Identifier: Apache-2.0
"""Start nearmetal with its own copies of the Python packages that it imports."""

import sys

sys.path.insert(0, "/usr/lib/nearmetal/python")

from nearmetal.cli.main import main

sys.exit(main())
