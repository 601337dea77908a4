# SPDX-License-Identifier: MIT OR Apache-2.0
# What scenarios share. It stands before each of them, here and in a NixOS test, and
# uses nothing but the test driver's own names.
