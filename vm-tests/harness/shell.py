# SPDX-License-Identifier: MIT OR Apache-2.0
"""The host's end of the root shell: one command, one reply, nothing between.

`guest/shell` is the other end and states the lines that are exchanged.
"""

import base64
import dataclasses
import socket

from .errors import MachineStopped


@dataclasses.dataclass(frozen=True)
class Reply:
    """What a command left: its exit status, its standard output, the guest's uptime after it."""

    status: int
    output: str
    uptime: float


class Shell:
    """A connection to the root shell of a machine."""

    def __init__(self, connection: socket.socket) -> None:
        self._stream = connection.makefile("rwb")
        self._next = 1

    def wait_until_ready(self) -> float:
        """Waits for the greeting of a machine that boots; gives its uptime."""
        return self._read("ready").uptime

    def run(self, command: str, seconds: float | None) -> Reply:
        """Runs a command in bash; past its seconds it is killed, with status 124."""
        request, self._next = str(self._next), self._next + 1
        code = base64.b64encode(command.encode()).decode()
        # 0 is no limit for timeout(1).
        line = f"{request} {seconds or 0} {code}\n"
        try:
            self._stream.write(line.encode())
            self._stream.flush()
        except OSError as error:
            raise MachineStopped("the machine is off") from error
        return self._read(request)

    def _read(self, request: str) -> Reply:
        try:
            line = self._stream.readline()
        except OSError as error:
            raise MachineStopped("the machine was switched off") from error
        if not line.endswith(b"\n"):
            raise MachineStopped("the machine stopped")
        name, status, uptime, output = line.decode("ascii").rstrip("\n").split(" ", 3)
        if name != request:
            raise MachineStopped(f"the shell answered {name!r} where {request!r} was due")
        text = base64.b64decode(output, validate=True).decode("utf-8", "replace")
        return Reply(int(status), text, float(uptime))
