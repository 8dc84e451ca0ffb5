# SPDX-License-Identifier: Apache-2.0
"""Containers of Slurm jobs: the launcher, the reclaimer, the watchdog, and the present state.

The plugin (src/spank) calls `launch` from the prolog of a node and `reclaim` from its epilog, and
puts tasks into the container. It alone reads the site's settings and passes them on. All state is
below one directory of /run; docs/design/slurm.md gives the reasons.
"""
