# SPDX-License-Identifier: Apache-2.0
"""The stages of host preparation. Each turns wishes and facts into steps. Pure."""
