# SPDX-License-Identifier: MIT OR Apache-2.0
"""The errors of the harness. Their text is shown to a person as it is."""


class HarnessError(Exception):
    """The harness cannot go on: something on the host is missing or refused."""


class ScenarioFailure(Exception):
    """What a scenario demanded of the machine did not hold."""


class MachineStopped(ScenarioFailure):
    """The virtual machine ended while something was still expected of it."""
