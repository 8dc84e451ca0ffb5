# SPDX-License-Identifier: Apache-2.0
"""Hosts from the box to virtual functions: BIOS, firmware, driver, with as few reboots as needed.

`planner.plan_hosts` is pure: a hosts file and the facts of each host in, steps in phases out.
"""
