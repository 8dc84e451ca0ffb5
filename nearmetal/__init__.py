# SPDX-License-Identifier: Apache-2.0
"""nearmetal: virtual HPC clusters whose MPI jobs run at near bare-metal speed, proven."""

__version__ = "0.1.0"
