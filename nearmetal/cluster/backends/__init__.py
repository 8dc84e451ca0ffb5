# SPDX-License-Identifier: Apache-2.0
"""One package per backend: its spec, its plan (both pure) and its driver."""
