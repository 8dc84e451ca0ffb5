# SPDX-License-Identifier: Apache-2.0
"""Every promise of speed beside the limits and the peers. Run `python -m benchmarks.promises`."""
