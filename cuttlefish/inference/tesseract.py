"""`tesseract:LANG`: the text that stands in the images, read by the program Tesseract. For machines without a vision model.

It is no language model: **it reads text and ignores the prompt**. What comes back is what stands in the images, in their order.
"""

import os
import re
import shutil
from collections.abc import Mapping

import trio

from cuttlefish.errors import InferenceFailed, ModelLoadFailed, TimedOut, Unsupported
from cuttlefish.inference.backend import Finish, ImageInput, Missing, Prompt, Reply, TokenMeter, TokenSink
from cuttlefish.inference.child import ChildResult, TooMuchOutput, run_child
from cuttlefish.inference.running import Running
from cuttlefish.inference.showing import Showing

__all__ = ["missing_tesseract", "open_tesseract"]

DEFAULT_LANGUAGE = "eng"
PAGE_TIME_S = 60.0
PAGE_TEXT_BYTES = 4 << 20
MEMORY_BYTES = 2 << 30
INSTALL = "Install it, e.g. on Debian: apt-get install tesseract-ocr; on macOS: brew install tesseract"


async def open_tesseract(target: str, *, local_only: bool = False) -> "TesseractBackend":
    """Find the program and see whether it has the languages, e.g. `eng` or `eng+deu`. Everything happens on this machine.

    Raises:
        ModelLoadFailed: no such program, or a language that it does not have.
    """
    language = target or DEFAULT_LANGUAGE
    found = await _find_program(language)
    if isinstance(found, Missing):
        raise ModelLoadFailed(f'model "tesseract:{language}": {found.reason}. {found.hint}')
    return TesseractBackend(found, language)


async def missing_tesseract(target: str, *, local_only: bool = False) -> Missing | None:
    """Whether the program and the languages are here."""
    found = await _find_program(target or DEFAULT_LANGUAGE)
    return found if isinstance(found, Missing) else None


async def _find_program(language: str) -> str | Missing:
    program = shutil.which("tesseract")
    if program is None:
        return Missing('there is no program "tesseract" on this machine', INSTALL)
    try:
        listed = await _run([program, "--list-langs"], b"")
    except (trio.TooSlowError, TooMuchOutput, OSError):
        return Missing('the program "tesseract" does not work here', INSTALL)
    known = set(listed.out.decode(errors="replace").split("\n")[1:]) - {"", "osd"}
    missing = [part for part in language.split("+") if part not in known]
    if missing:
        package = re.sub(r"[^a-z0-9-]", "", missing[0].lower().replace("_", "-"))
        reason = f'Tesseract does not know the language "{missing[0]}", only {", ".join(sorted(known))}'
        return Missing(reason, f"Install it, e.g. on Debian: apt-get install tesseract-ocr-{package}")
    return program


class TesseractBackend:
    """Keeps the promises of `Backend` with a child process for each image. A word is one token; `tokens_in` counts images.

    The text is shown line by line. A cancel kills the process at once.
    """

    accepts_images = True

    def __init__(self, program: str, language: str) -> None:
        self.name = f"tesseract:{language}"
        self._program = program
        self._language = language
        self._running = Running(self.name)

    async def infer(self, prompt: Prompt, sink: TokenSink, meter: TokenMeter) -> Reply:
        """See `Backend.infer`. The words of the prompt, its temperature and its seed change nothing."""
        if not prompt.images:
            raise Unsupported(f'model "{self.name}" only reads the text in images, and the prompt has none. Use a language model')
        if prompt.schema is not None:
            raise Unsupported(
                f'model "{self.name}" only reads the text in images and cannot answer in a form. Use a language model'
            )
        with self._running.until_closed():
            return await self._read_all(prompt, sink, meter)

    async def _read_all(self, prompt: Prompt, sink: TokenSink, meter: TokenMeter) -> Reply:
        showing, left = Showing(prompt, sink), prompt.max_tokens
        finish: Finish = "stop"
        for number, image in enumerate(prompt.images, 1):
            meter.add(tokens_in=1)
            text = await self._read(image, number, len(prompt.images))
            for line in re.findall(r"[^\n]*\n|[^\n]+\Z", text):
                words = re.findall(r"\s*\S+\s*", line)[:left]
                meter.add(tokens_out=len(words))
                left -= len(words)
                if not await showing.add("".join(words) or line):
                    return await showing.end("stop")
                if left <= 0:
                    finish = "length"
                    break
            if left <= 0:
                break
        return await showing.end(finish)

    async def _read(self, image: ImageInput, number: int, of: int) -> str:
        which = f"image {number} of {of}"
        try:
            result = await _run([self._program, "stdin", "stdout", "-l", self._language], image.data)
        except trio.TooSlowError:
            raise TimedOut(f'model "{self.name}" did not read {which} within {PAGE_TIME_S:g} s. Give it a smaller one') from None
        except TooMuchOutput:
            raise InferenceFailed(f'model "{self.name}" found more than {PAGE_TEXT_BYTES >> 20} MiB of text in {which}') from None
        except OSError:
            raise InferenceFailed(f'model "{self.name}" cannot be started any more: its program is gone. {INSTALL}') from None
        if result.code != 0:
            raise InferenceFailed(f'model "{self.name}" cannot read {which}: it is no picture that Tesseract knows, or too large')
        return result.out.decode(errors="replace").replace("\f", "\n").strip("\n") + "\n"

    async def aclose(self) -> None:
        """See `Backend.aclose`."""
        await self._running.close()


async def _run(command: list[str], data: bytes) -> ChildResult:
    env: Mapping[str, str] = {**os.environ, "OMP_THREAD_LIMIT": "1"}  # its threads slow each other down
    return await run_child(command, data, time_s=PAGE_TIME_S, out_bytes=PAGE_TEXT_BYTES, memory_bytes=MEMORY_BYTES, env=env)
