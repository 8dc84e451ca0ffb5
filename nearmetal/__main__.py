# SPDX-License-Identifier: Apache-2.0
"""`python -m nearmetal`."""

import sys

from nearmetal.cli.main import main

sys.exit(main())
