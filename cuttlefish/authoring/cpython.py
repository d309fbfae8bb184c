"""A Python block under ordinary Python: outside of the sandbox, where a debugger works.

It has the face of `engine.guest.Guest`, so whatever steps a guest steps this as well. The block starts with the names of the
prelude, the same file that the sandbox's interpreter runs.
"""

import builtins
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import CodeType, GeneratorType
from typing import Any

from cuttlefish.authoring.toolchains import guests_folder
from cuttlefish.engine.guest import JSON_TO_JSON
from cuttlefish.errors import NotFound, Unsupported
from cuttlefish_abi import Signature, TyError

__all__ = ["SANDBOX_MODULES", "PythonBlock"]

SANDBOX_MODULES = frozenset(
    """
    array base64 binascii bisect cmath collections copy errno functools gc hashlib heapq io itertools json math operator random re
    string struct sys textwrap typing
    """.split()  # noqa: SIM905  # twenty quotes more say nothing more
)
"""What can be imported in the sandbox; a test asks its interpreter for each."""

Namespace = dict[str, Any]


class PythonBlock:
    """A fresh start of the block in a file. `init`, then `step` until the command is `done` or `fail`.

    What the block raises comes out as it is, with the author's own lines; only its `fail(code, message)` becomes a command. It sees
    all of Python but for `import`, which knows what the sandbox knows. The sandbox is MicroPython, so a test here does not replace
    one there (`cuttlefish block test`).

    Raises:
        NotFound: there is no such file.
        SyntaxError, Exception: whatever running the file raises.
        NameError, TypeError: it has no function `run`, or an `on_token` or SIGNATURE that cannot be one.
        Unsupported: a SIGNATURE that cannot be read.
    """

    def __init__(self, path: str | Path) -> None:
        file = Path(path)
        self.name = file.name
        try:
            source = file.read_bytes()
        except FileNotFoundError:
            raise NotFound(f'there is no block "{path}"') from None
        self._prelude: Namespace = {"__name__": "prelude"}
        exec(_prelude_code(), self._prelude)  # noqa: S102  # our own file
        names = {name: value for name, value in self._prelude.items() if not name.startswith("_")}
        own_builtins = vars(builtins) | {"__import__": _import_as_the_sandbox}
        namespace: Namespace = names | {"__name__": file.stem, "__file__": str(file), "__builtins__": own_builtins}
        exec(compile(source, str(file.resolve()), "exec"), namespace)  # noqa: S102  # whoever tests a block wants it run
        self._run = namespace.get("run")
        if not callable(self._run):
            raise NameError("a Python block defines a function run(input), and this file has none")
        self._on_token = namespace.get("on_token")
        if self._on_token is not None and not callable(self._on_token):
            raise TypeError("on_token is a function: def on_token(token)")
        self._signature = JSON_TO_JSON
        if "SIGNATURE" in namespace:
            said = self._prelude["_signature"](namespace["SIGNATURE"])
            try:
                self._signature = Signature.parse(f"{said['input']} -> {said['output']}")
            except TyError as error:
                raise Unsupported(f'"{self.name}" has a signature that cannot be read: {error}') from None
        self._generator: GeneratorType[object, object, object] | None = None

    @property
    def hears_tokens(self) -> bool:
        """Whether the block wants to see the model's reply as it comes."""
        return self._on_token is not None

    @property
    def line(self) -> int | None:
        """The author's line at which the block waits for an event; None where it does not."""
        line = None
        waiting: object = self._generator
        while isinstance(waiting, GeneratorType) and waiting.gi_frame is not None:
            line, waiting = waiting.gi_frame.f_lineno, waiting.gi_yieldfrom
        return line

    def signature(self) -> Signature:
        """What the block says it takes and gives; `json -> json` if it does not say."""
        return self._signature

    def init(self, value: bytes) -> bytes:
        """Give the block its input, as JSON; get its first command, as JSON."""
        assert self._run is not None
        try:
            given = self._run(json.loads(value))
        except self._prelude["Fail"] as failure:
            return self._failed(failure)
        if isinstance(given, GeneratorType):
            self._generator = given
            return self._resume(None)
        return self._done(given)  # a plain function: it has nothing to ask

    def step(self, event: bytes) -> bytes:
        """Give the block the answer to its last command, as JSON; get the next command, as JSON."""
        return self._resume(self._prelude["_event"](json.loads(event)))

    def on_token(self, piece: bytes) -> bool:
        """Show the block a piece of the model's reply, as UTF-8. True when it has seen enough, False too if it does not look."""
        if self._on_token is None:
            return False
        verdict = self._on_token(piece.decode())
        if isinstance(verdict, GeneratorType):
            raise TypeError("on_token cannot yield: it is a plain function that returns False to stop")
        return verdict is not None and not verdict

    def _resume(self, event: object) -> bytes:
        generator = self._generator
        assert generator is not None
        try:
            yielded = generator.send(event)
            while True:
                try:
                    return _encode(self._prelude["_command"](yielded))
                except (TypeError, ValueError) as problem:
                    yielded = generator.throw(problem)  # raised where it was yielded, so that the author sees the line
        except StopIteration as end:
            return self._done(end.value)
        except self._prelude["Fail"] as failure:
            return self._failed(failure)

    def _done(self, result: object) -> bytes:
        try:
            return _encode({"cmd": "done", "result": result})
        except (TypeError, ValueError) as problem:
            raise TypeError(self._prelude["_no_result"](result, problem)) from None

    def _failed(self, failure: Any) -> bytes:
        return _encode({"cmd": "fail", "code": failure.code, "message": failure.message})


@cache
def _prelude_code() -> CodeType:
    path = guests_folder() / "python" / "prelude.py"
    return compile(path.read_bytes(), str(path), "exec")


def _import_as_the_sandbox(
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: tuple[str, ...] = (),
    level: int = 0,
) -> object:
    top = name.partition(".")[0]
    if level or top not in SANDBOX_MODULES:
        raise ImportError(f"no module named '{name}' in the sandbox of Python blocks; docs/python-blocks.md says what there is")
    return builtins.__import__(name, globals, locals, fromlist, level)


def _encode(fields: object) -> bytes:
    return json.dumps(fields, ensure_ascii=False, allow_nan=False).encode()
