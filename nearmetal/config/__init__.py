# SPDX-License-Identifier: Apache-2.0
"""Files that people write: documents with positions, YAML, sizes, passwords, and what a field may hold."""
