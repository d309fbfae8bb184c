"""The command line. Only what is asked for is imported: `--help` answers at once."""

from cuttlefish.cli.main import main

__all__ = ["main"]
