"""Where the command line keeps what a bug report needs."""

import logging
import logging.handlers
import os
import secrets
from pathlib import Path

import platformdirs

__all__ = ["log_bug", "start_log"]

MOST_BYTES = 1 << 20


def log_path() -> Path:
    """The log file: in the folder that `CUTTLEFISH_LOG_DIR` names, else in the user's folder for logs."""
    return Path(os.environ.get("CUTTLEFISH_LOG_DIR") or platformdirs.user_log_path("cuttlefish")) / "cuttlefish.log"


def start_log() -> None:
    """Send the library's log to the file. Where none can be written, warnings and worse go to standard error."""
    handler: logging.Handler
    try:
        log_path().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handler = logging.handlers.RotatingFileHandler(log_path(), maxBytes=MOST_BYTES, backupCount=1, delay=True)
    except OSError:
        handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.getLogger("cuttlefish").addHandler(handler)


def log_bug(error: BaseException) -> str:
    """Write an error with its traceback to the log; return the words that lead there."""
    if not logging.getLogger("cuttlefish").handlers:
        start_log()
    reference = secrets.token_hex(4)
    logging.getLogger("cuttlefish").error("internal error %s", reference, exc_info=error)
    return f"what {log_path()} says under {reference}"
