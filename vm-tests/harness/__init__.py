# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs Sluice's VM scenarios on a Debian image under QEMU."""
