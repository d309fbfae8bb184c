"""How a command ends."""

__all__ = ["BUG", "CANCELLED", "COMPLETED", "FAILED", "USAGE", "UsageError"]

COMPLETED = 0
FAILED = 1
USAGE = 2
BUG = 70  # sysexits' EX_SOFTWARE
CANCELLED = 130  # what a shell shows for a program ended by Ctrl-C


class UsageError(Exception):
    """The command line asks for something that cannot be meant. The text says what would be right."""
