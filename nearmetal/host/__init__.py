# SPDX-License-Identifier: Apache-2.0
"""Hosts from the box to virtual functions: BIOS, firmware, driver, with as few reboots as needed.

`plan.plan_hosts` is pure: from a hosts file and the facts of each host to steps in phases.
"""
