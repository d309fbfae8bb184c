"""One worker process: how it is started, talked to and ended. What comes out of it is as untrusted as the file that went in."""

import array
import concurrent.futures
import contextlib
import importlib.util
import json
import logging
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio

from cuttlefish.media.document_worker import FRAME

__all__ = ["Answer", "Launcher", "WorkerGone", "WorkerProcess"]

ANSWER_HEADER_BYTES = 4096
CHUNK_BYTES = 64 << 10
LAST_WORDS_BYTES = 4096
REAP_POLL_S = 0.005

# Neither `cuttlefish/__init__.py` nor that of `media` runs in a worker: empty packages stand in for them.
BOOTSTRAP = """\
import json, sys, types
fd, memory, parent, packages, site = json.loads(sys.argv[1])
for name, path in packages:
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
sys.path += [path for path in site if path not in sys.path]
from cuttlefish.media.document_worker import main
main(fd, memory, parent)
"""

log = logging.getLogger(__name__)

Answer = Mapping[str, Any]
"""JSON from a worker: nothing about it is known."""


class WorkerGone(Exception):  # not an error of the tree: it is always translated
    """The worker is dead, or broke the rules of the conversation and has to die."""


class WorkerProcess:
    """One process and the connection to it."""

    def __init__(
        self, process: subprocess.Popen[bytes], connection: trio.socket.SocketType, stderr: int, memory_bytes: int
    ) -> None:
        self.process = process
        self.memory_bytes = memory_bytes
        self.document: tuple[int, ...] | None = None  # what it has open, as far as we know
        self.documents = 0
        self.resident = 0
        self.last_words = b""
        self.code: int | None = None
        self.collected = trio.Event()
        self._connection = connection
        self._unread = b""  # what came with earlier bytes …
        self._at = 0  # … and how far it was read
        self._stderr = stderr

    async def send(self, question: Mapping[str, Any], fd: int | None, payload: bytes) -> None:
        """Send a question, with a copy of a descriptor.

        Raises:
            WorkerGone: nobody reads it.
        """
        header = json.dumps(question).encode()
        start = FRAME.pack(len(header), len(payload)) + header
        try:
            if fd is None:
                sent = await self._connection.send(start)
            else:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
                sent = await self._connection.sendmsg([start], rights)
            for part in (memoryview(start)[sent:], memoryview(payload)):
                at = 0
                while at < len(part):
                    at += await self._connection.send(part[at:])
        except (BrokenPipeError, ConnectionResetError):
            raise WorkerGone from None

    async def receive(self, reply_bytes: int) -> tuple[Mapping[str, Any], bytes]:
        """Return the header and payload of an answer, or of a piece of one, marked `more`. The payload has at most `reply_bytes`.

        Raises:
            WorkerGone: no answer, or one that is no answer.
        """
        header_bytes, payload_bytes = FRAME.unpack(await self._exactly(FRAME.size))
        if header_bytes > ANSWER_HEADER_BYTES or payload_bytes > reply_bytes:
            raise WorkerGone
        try:
            answer = json.loads(await self._exactly(header_bytes))
        except (ValueError, RecursionError):
            raise WorkerGone from None
        if not isinstance(answer, dict):
            raise WorkerGone
        payload = bytes(await self._exactly(payload_bytes))
        if "more" not in answer:
            resident = answer.get("resident")
            self.resident = resident if isinstance(resident, int) else 0
            if self._at < len(self._unread):  # it went on talking: that could pass for the answer to the next question
                raise WorkerGone
        return answer, payload

    async def _exactly(self, length: int) -> bytes | bytearray:
        """The next bytes. A small answer arrives in one piece, and each wait costs as much as the rest of a hop together."""
        if self._at + length <= len(self._unread):
            self._at += length
            return self._unread[self._at - length : self._at]
        whole = bytearray(length)
        at = len(self._unread) - self._at
        whole[:at] = self._unread[self._at :]
        self._unread, self._at = b"", 0
        try:
            while length - at > CHUNK_BYTES:
                count = await self._connection.recv_into(memoryview(whole)[at:])
                if count == 0:
                    raise WorkerGone
                at += count
            while at < length:
                self._unread = await self._connection.recv(CHUNK_BYTES)
                if not self._unread:
                    raise WorkerGone
                self._at = min(length - at, len(self._unread))
                whole[at : at + self._at] = self._unread[: self._at]
                at += self._at
        except ConnectionResetError:
            raise WorkerGone from None
        return whole

    def end(self) -> None:
        """Kill the process and let go of it. Does not wait."""
        with contextlib.suppress(BlockingIOError):
            self.last_words = os.read(self._stderr, LAST_WORDS_BYTES)
        os.close(self._stderr)
        self.process.kill()
        self._connection.close()
        if self.last_words:
            log.debug("a document worker's last words: %r", self.last_words)


class Launcher:
    """The one thread that starts workers and collects dead ones. It lives as long as the pool.

    Linux sends the parent-death signal when the *thread* that started a process ends. Threads of `trio.to_thread` end when they
    have been idle for some seconds: a worker started there died with them.
    """

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[tuple[int, concurrent.futures.Future[WorkerProcess]] | WorkerProcess | None] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None
        self._token = trio.lowlevel.current_trio_token()
        self._media = Path(__file__).parent
        self._site = site_folders()

    async def start(self, memory_bytes: int) -> WorkerProcess:
        """Start a process. Takes 1–3 ms, during which it cannot be cancelled."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="cuttlefish document workers", daemon=True)
            self._thread.start()
        future: concurrent.futures.Future[WorkerProcess] = concurrent.futures.Future()
        done = trio.Event()
        future.add_done_callback(lambda _: self._token.run_sync_soon(done.set))
        self._tasks.put((memory_bytes, future))
        with trio.CancelScope(shield=True):
            await done.wait()
        return future.result()

    def collect(self, worker: WorkerProcess) -> None:
        """Have a killed worker's process collected, so that it does not stay as a zombie."""
        self._tasks.put(worker)

    async def close(self) -> None:
        """Wait until all killed processes are gone."""
        if self._thread is not None:
            self._tasks.put(None)
            await trio.to_thread.run_sync(self._thread.join)

    def _run(self) -> None:
        living: set[WorkerProcess] = set()
        dying: list[WorkerProcess] = []
        closing = False
        while not closing or dying:
            with contextlib.suppress(queue.Empty):
                task = self._tasks.get(timeout=REAP_POLL_S if dying else None)
                if task is None:
                    closing = True
                    for worker in living:  # one whose start was still under way, that nobody has asked to collect
                        worker.process.kill()
                    dying += living
                    living.clear()
                elif isinstance(task, WorkerProcess):
                    if task in living:
                        living.remove(task)
                        dying.append(task)
                else:
                    try:
                        worker = self._spawn(task[0])
                        living.add(worker)
                        task[1].set_result(worker)
                    except Exception as error:  # noqa: BLE001  # raised again by whoever waits for the future
                        task[1].set_exception(error)
            for worker in list(dying):
                worker.code = worker.process.poll()
                if worker.code is not None:
                    dying.remove(worker)
                    with contextlib.suppress(trio.RunFinishedError):
                        self._token.run_sync_soon(worker.collected.set)

    def _spawn(self, memory_bytes: int) -> WorkerProcess:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        stderr, stderr_end = os.pipe()
        try:
            # A full pipe blocks its writer for ever. Without blocking, what does not fit is lost, and nobody has to read
            os.set_blocking(stderr, False)
            os.set_blocking(stderr_end, False)
            packages = [["cuttlefish", str(self._media.parent)], ["cuttlefish.media", str(self._media)]]
            arguments = json.dumps([theirs.fileno(), memory_bytes, os.getpid(), packages, self._site])
            process = subprocess.Popen(
                [sys.executable, "-I", "-X", "utf8", "-W", "ignore", "-c", BOOTSTRAP, arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr_end,
                env={},
                cwd="/",
                pass_fds=[theirs.fileno()],
            )
        except BaseException:
            ours.close()
            os.close(stderr)
            raise
        finally:
            theirs.close()
            os.close(stderr_end)
        ours.setblocking(False)
        return WorkerProcess(process, trio.socket.from_stdlib_socket(ours), stderr, memory_bytes)


def site_folders() -> list[str]:
    """Where the worker's libraries are: an isolated interpreter may not look in the same places as this one."""
    folders = []
    for name in ("pypdfium2", "PIL"):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            folders.append(str(Path(spec.origin).resolve().parent.parent))
    return folders
