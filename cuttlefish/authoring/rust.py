"""Cargo for blocks in Rust: which one, with which crates, on which crate."""

import fcntl
import os
import shutil
import subprocess
import tomllib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from cuttlefish.errors import BuildFailed

__all__ = ["DEBIAN_CARGO", "RUST_INSTALL", "RUST_TARGET", "CargoProject", "RustTools", "cargo_project", "find_rust", "lock_target"]

RUST_TARGET = "wasm32-unknown-unknown"
DEBIAN_CARGO = Path("/usr/bin/cargo")
DEBIAN_CRATES = Path("/usr/share/cargo/registry")
RUST_INSTALL = (
    f"With rustup: rustup target add {RUST_TARGET}. "
    "On Debian: apt-get install rustc cargo libstd-rust-dev-wasm32 lld librust-serde-json-dev"
)
LOCK_POLL_S = 0.05
QUESTION_S = 60

MANIFEST = """[package]
name = "{name}"
version = "0.0.0"
edition = "2021"

[lib]
path = "{source}"
crate-type = ["cdylib"]

[dependencies]
cuttlefish-block = {{ path = "cuttlefish-block" }}
serde = {{ version = "1", features = ["derive"] }}
serde_json = "1"

[profile.release]
opt-level = "s"
lto = true
panic = "abort"
codegen-units = 1
strip = true
"""


@dataclass(frozen=True, slots=True)
class RustTools:
    """A cargo that can build for WebAssembly."""

    label: str
    """Tells its results from those of another cargo."""
    command: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CargoProject:
    """What cargo builds: a manifest, and the name of the library in it."""

    manifest: Path
    library: str


def find_rust() -> RustTools | None:
    """The first cargo that has the target: the one that `CARGO` names, the one in the path, Debian's. Blocking.

    Debian's builds offline from Debian's packages of crates; others fetch crates as they are set up to.
    """
    named = os.environ.get("CARGO")
    candidates = [Path(named)] if named else [Path(found) for found in [shutil.which("cargo")] if found] + [DEBIAN_CARGO]
    for cargo in candidates:
        rustc = cargo.with_name("rustc")
        if not cargo.is_file() or not rustc.is_file():
            continue
        asked = subprocess.run(
            [rustc, "--print", "target-libdir", "--target", RUST_TARGET],
            capture_output=True,
            text=True,
            check=False,
            timeout=QUESTION_S,
        )
        if asked.returncode != 0 or not Path(asked.stdout.strip()).is_dir():
            continue
        command = [str(cargo), "build", "--quiet", "--release", "--lib", "--target", RUST_TARGET]
        environment = {"RUSTC": str(rustc), "CARGO_TERM_COLOR": "never"}
        if cargo == DEBIAN_CARGO and DEBIAN_CRATES.is_dir():
            command += ["--offline", "--config", 'source.crates-io.replace-with="debian"']
            command += ["--config", f'source.debian.directory="{DEBIAN_CRATES}"']
            environment["CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER"] = "wasm-ld"
        return RustTools("-".join(cargo.parts[1:-1]), tuple(command), environment)
    return None


def cargo_project(source: Path, sdk: Mapping[str, Path], scratch: Path) -> CargoProject:
    """The crate of a source: that of the `Cargo.toml` beside it or above it, or one made in `scratch` for the file alone.

    Raises:
        BuildFailed: a `Cargo.toml` that cannot be read or names no package.
    """
    for folder in (source.parent, source.parent.parent):
        manifest = folder / "Cargo.toml"
        if manifest.is_file() and (folder == source.parent or source.parent.name == "src"):
            try:
                read = tomllib.loads(manifest.read_text(encoding="utf-8"))
                library = read.get("lib", {}).get("name") or read["package"]["name"]
            except (tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, AttributeError, TypeError) as problem:
                raise BuildFailed(f'"{manifest}" is no manifest of a crate: {problem}', output="") from None
            return CargoProject(manifest, str(library).replace("-", "_"))
    for name, file in sdk.items():
        target = scratch / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    shutil.copyfile(source, scratch / source.name)
    manifest = scratch / "Cargo.toml"
    manifest.write_text(MANIFEST.format(name=source.stem.replace("_", "-"), source=source.name), encoding="utf-8")
    return CargoProject(manifest, source.stem)


@asynccontextmanager
async def lock_target(folder: Path) -> AsyncIterator[None]:
    """Hold a folder of cargo's results, so that a block of the same name cannot replace one before it is read."""
    await trio.to_thread.run_sync(lambda: folder.mkdir(parents=True, exist_ok=True))
    fd = os.open(folder / "cuttlefish.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await trio.sleep(LOCK_POLL_S)
        yield
    finally:
        os.close(fd)
