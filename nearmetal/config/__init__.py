# SPDX-License-Identifier: Apache-2.0
"""Files that users write: YAML with positions, its faults in words, sizes, passwords, field types."""
