# SPDX-License-Identifier: Apache-2.0
"""Performance of nodes and pairs, compared with their own class. Pure: measuring is elsewhere.

Read `procedure.py` first: screening, suspicion, retest, name. docs/design/check.md has the
derivation of the bound on false alarms.
"""
