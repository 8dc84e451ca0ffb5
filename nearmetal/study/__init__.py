# SPDX-License-Identifier: Apache-2.0
"""Studies: from raw logs to observations by arm and point, and to verdicts.

Only `runner` starts processes; all other modules read or compute.
"""
