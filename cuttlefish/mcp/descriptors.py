"""Keeps standard input and output for the protocol. Imports nothing that might print."""

import fcntl
import os
import sys
from dataclasses import dataclass

__all__ = ["StdioDescriptors", "claim_stdio"]


@dataclass(frozen=True, slots=True)
class StdioDescriptors:
    """Where the protocol is read and written."""

    input: int
    output: int


def claim_stdio() -> StdioDescriptors:
    """Take standard input and output for the protocol alone.

    From now on descriptor 1 is standard error and descriptor 0 is empty, so that a print of any code in this process or of its
    children, native code too, cannot get among the messages, and no child eats some of them. It is not undone: the process serves
    until its end.
    """
    sys.stdout.flush()
    input, output = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in (0, 1))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # standard error is closed
        os.dup2(nothing, 1)
    os.close(nothing)
    return StdioDescriptors(input, output)
