"""What commands write for programs and people to read."""

import json
import sys

__all__ = ["write", "write_json"]


def write(text: str) -> None:
    """Write to standard output as UTF-8, whatever the terminal is set to, and see it off: a reader that is gone is told here."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))
    sys.stdout.buffer.flush()


def write_json(value: object) -> None:
    """Write a value as one JSON document."""
    write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
