# SPDX-License-Identifier: Apache-2.0
"""Decisions about moves of machines under a running job (docs/design/migration.md). All pure."""
