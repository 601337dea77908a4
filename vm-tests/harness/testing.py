# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the harness's own tests share."""

import unittest


def sentences(*cases: type[unittest.TestCase]) -> unittest.TestSuite:
    """Collects tests whose names are sentences: each own method without a leading underscore."""
    return unittest.TestSuite(
        case(name)
        for case in cases
        for name, member in vars(case).items()
        if callable(member) and not name.startswith("_") and name != "setUp"
    )
