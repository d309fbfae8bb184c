"""`cuttlefish.testing`: Python blocks under ordinary Python."""

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cuttlefish
from cuttlefish.authoring.conversations import BadConversation
from cuttlefish.authoring.cpython import SANDBOX_MODULES
from cuttlefish.errors import (
    BadCommand,
    BlockFailed,
    CapabilityDenied,
    CuttlefishError,
    DocumentInvalid,
    InferenceFailed,
    ModelLoadFailed,
    NotFound,
    SchemaMismatch,
    Unsupported,
)
from cuttlefish.testing import play, replay_case, run_block

COUNT = """
SIGNATURE = "{path: text} -> {path: text, words: number}"

def run(input):
    file = yield open(input["path"])
    words, offset, rest = 0, 0, ""
    while offset < file.len:
        window = yield slice(file.handle, offset, 8)
        *whole, rest = (rest + window.text).split(" ")
        words += len([word for word in whole if word])
        offset = window.next_offset
        yield emit({"done": offset, "of": file.len})
    return {"path": input["path"], "words": words + bool(rest)}
"""

ASK = """
seen = []

def run(input):
    reply = yield infer("Say it: " + input, max_tokens=5)
    return [reply.text, reply.tokens_out, reply.finish_reason, seen]

def on_token(token):
    seen.append(token)
    return "stop" not in token
"""

HEAR = """
heard = []

def run(input):
    reply = yield infer(input)
    return [reply.text, heard]

def on_token(token):
    heard.append(token)
"""

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(source: str) -> Path:
        path = tmp_path / "my_block.py"
        path.write_text(source, encoding="utf-8")
        return path

    return write


def result(path: Path, value: object = None, **options: Any) -> Any:
    return run_block(path, value, **options).result


def test_a_block_reads_its_files_by_the_rules_of_the_contract(write: Write) -> None:
    text = "one två 日本語  fyra"
    played = run_block(write(COUNT), {"path": "in/a.txt"}, files={"in/a.txt": text})
    assert played.result == {"path": "in/a.txt", "words": 4}
    windows = [event["text"] for event in played.events if event["event"] == "sliced"]
    assert "".join(windows) == text
    assert max(len(window.encode()) for window in windows) <= 8
    assert played.progress[-1] == {"done": len(text.encode()), "of": len(text.encode())}
    assert [command["cmd"] for command in played.commands][:2] == ["open", "slice"]
    assert played.commands[-1]["cmd"] == "done"


def test_files_are_what_their_content_says(write: Write) -> None:
    block = write("def run(input):\n    file = yield open(input)\n    return [file.kind, file.format, file.pages]")
    files: dict[str, Any] = {"t": "text", "b": b"\0\xff", "i": b"\x89PNG\r\n\x1a\n____", "d.pdf": ["one", "two"]}
    assert [result(block, name, files=files) for name in files] == [
        ["text", None, None],
        ["binary", None, None],
        ["image", "png", None],
        ["document", None, 2],
    ]


def test_pages_of_a_document_are_read_and_a_bad_one_costs_only_itself(write: Write) -> None:
    block = write("""
def run(input):
    file = yield open("./report.pdf")
    first = yield page_text(file, 0)
    scan = yield page_text(file, 1)
    bad = yield page_text_opt(file, 2)
    picture = yield page_image(file, 1)
    small = yield resize(picture, 10, 10)
    reply = yield infer("What is it?", images=[small])
    return [file.has_text_layer, first.text, scan.images, bad.text, bad.error, picture.format, reply.text]
""")
    pages = ["One.", "", DocumentInvalid("page 2 is damaged")]
    said = result(block, files={"report.pdf": pages}, replies=["a squid"])
    assert said == [True, "One.", 1, None, "document_invalid: page 2 is damaged", "png", "a squid"]
    whole = write('def run(input):\n    file = yield open("r")\n    return (yield document_text(file)).text')
    assert result(whole, files={"r": ["One.\n", "", "Two."]}) == "One.\n\nTwo."


def test_an_image_has_one_frame_and_another_is_past_the_end(write: Write) -> None:
    block = write("""
def run(input):
    picture = yield open("a.png")
    taken = yield frame(picture, input)
    small = yield resize(taken, 10, 10)
    return [taken.frames, small.frames]
""")
    files: dict[str, Any] = {"a.png": b"\x89PNG\r\n\x1a\n____"}
    assert result(block, 0, files=files) == [1, None]
    with pytest.raises(CuttlefishError, match=r"frame 1 is past the end; in a test .* has 1 frame"):
        run_block(block, 1, files=files)


def test_replies_come_word_by_word_to_a_block_that_listens(write: Write) -> None:
    assert result(write(ASK), "x", replies=["it is"]) == ["it is", 2, "stop", ["it", " is"]]
    assert result(write(ASK), "x", replies=["it stops here"]) == ["it stops", 2, "stopped_by_block", ["it", " stops"]]
    assert result(write(ASK), "x", replies=["1 2 3 4 5 6 7"])[:3] == ["1 2 3 4 5", 5, "length"]


def test_replies_may_be_a_function_of_the_command(write: Write) -> None:
    block = write('def run(input):\n    return (yield infer("p", schema={"type": "object"}, stop=["."])).text')
    played = run_block(block, None, replies=lambda command: f"{command['prompt']} {command['options']['schema']}. more")
    assert (played.result, played.prompts) == ("p {'type': 'object'}", ["p"])


def test_vectors_come_from_a_function(write: Write) -> None:
    block = write('def run(input):\n    return (yield embed(["a", "bb"])).vectors')
    assert result(block, embed=lambda texts: [[float(len(text))] for text in texts]) == [[1.0], [2.0]]
    with pytest.raises(ModelLoadFailed, match=r"give embed=FUNCTION$"):
        run_block(block, None)


def test_each_run_starts_the_block_anew(write: Write) -> None:
    block = write("seen = []\ndef run(input):\n    seen.append(input)\n    return seen")
    assert [result(block, 1), result(block, 2)] == [[1], [2]]


def test_fail_is_raised_with_the_blocks_own_code(write: Write) -> None:
    block = write("""
def run(input):
    try:
        yield emit(1)
        fail("no_text", "there is none")
    except Exception:
        return "caught"
""")
    with pytest.raises(BlockFailed) as caught:
        run_block(block, None)
    assert (caught.value.code, caught.value.message) == ("no_text", "there is none")


REFUSED: dict[str, tuple[str, dict[str, Any], type[CuttlefishError], str]] = {
    "no such file": (
        'yield open("b.txt")',
        {"files": {"a.txt": ""}},
        NotFound,
        'my_block.py:2: open "b.txt": the test\'s files have no such file; they are: "a.txt"',
    ),
    "outside": (
        'yield open("/etc/passwd")',
        {},
        CapabilityDenied,
        'my_block.py:2: open "/etc/passwd": it leads out of the test\'s files; they are: nothing',
    ),
    "past the end": (
        'yield slice((yield open("a")), 9)',
        {"files": {"a": "abc"}},
        BadCommand,
        "my_block.py:2: slice: offset 9 is past the end",
    ),
    "no such page": (
        'yield page_text((yield open("a")), 1)',
        {"files": {"a": ["x"]}},
        BadCommand,
        'my_block.py:2: page_text: page 1 is past the end; "a" has 1 page (the first is 0)',
    ),
    "no reply left": (
        'yield infer("a"); yield infer("b")',
        {"replies": ["x"]},
        InferenceFailed,
        'my_block.py:2: the block asks the model 2 times, and the test gives 1 reply: "b"',
    ),
    "bytes of a document": (
        'yield open("a")',
        {"files": {"a": b"%PDF-1.7"}},
        BadCommand,
        'my_block.py:2: open "a": these bytes are a document; a test gives one as the list of its pages\' texts',
    ),
    "a command by hand that is none": (
        'yield {"cmd": "opn"}',
        {},
        BadCommand,
        'my_block.py:2: command 1 of "my_block.py": cmd "opn" is unknown; did you mean "open"?',
    ),
}


@pytest.mark.parametrize(("line", "options", "kind", "message"), REFUSED.values(), ids=REFUSED)
def test_what_a_host_would_refuse_is_raised_with_the_authors_line(
    write: Write, line: str, options: dict[str, Any], kind: type[CuttlefishError], message: str
) -> None:
    with pytest.raises(kind) as caught:
        run_block(write(f"def run(input):\n    {line}"), None, **options)
    assert caught.value.message.startswith(message)


def test_the_line_told_is_that_of_the_helper_that_waits(write: Write) -> None:
    block = write('def helper():\n    yield open("b")\n\ndef run(input):\n    yield from helper()')
    with pytest.raises(NotFound, match=r"^my_block\.py:2: "):
        run_block(block, None)


def test_input_and_result_must_fit_the_signature(write: Write) -> None:
    with pytest.raises(SchemaMismatch, match=r"input\.path is missing"):
        run_block(write(COUNT), {})
    block = write('SIGNATURE = "json -> {words: number}"\ndef run(input):\n    return {"words": "3"}')
    with pytest.raises(SchemaMismatch, match=r"its own signature, \{words: number\}: result\.words must be a number"):
        run_block(block, None)


def test_what_the_block_raises_comes_out_as_it_is(write: Write) -> None:
    block = write("def run(input):\n    yield emit(1)\n    return 1 // input")
    with pytest.raises(ZeroDivisionError) as caught:
        run_block(block, 0)
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (Path(last.filename), last.lineno, last.name) == (block, 3, "run")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('yield "open"', "yield takes a command, such as open(path) or emit(progress), found 'open'"),
        ("yield emit({1, 2})", "Object of type set is not JSON serializable"),
        ("yield open(3)", "path must be text, found 3"),
    ],
)
def test_a_yield_of_no_command_is_raised_at_its_own_line(write: Write, line: str, message: str) -> None:
    with pytest.raises(TypeError) as caught:
        run_block(write(f"def run(input):\n    yield emit(1)\n    {line}"), None)
    assert str(caught.value) == message
    block_lines = [
        frame.lineno
        for frame in traceback.extract_tb(caught.value.__traceback__)
        if frame.name == "run" and "my_block" in frame.filename
    ]
    assert block_lines == [3]


def test_a_block_may_catch_its_own_wrong_yield(write: Write) -> None:
    block = write("def run(input):\n    try:\n        yield 3\n    except TypeError:\n        yield emit('caught')\n    return 1")
    assert run_block(block, None).progress == ["caught"]


def test_a_function_without_a_yield_is_done_at_once(write: Write) -> None:
    assert result(write("def run(input):\n    return input * 2"), 4) == 8
    with pytest.raises(TypeError, match=r"^what run returned is no JSON value: "):
        run_block(write("def run(input):\n    return {1, 2}"), None)


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        ("def rum(input): pass", NameError, "a Python block defines a function run(input), and this file has none"),
        ("def run(input): pass\non_token = 3", TypeError, "on_token is a function: def on_token(token)"),
        ("SIGNATURE = 3\ndef run(input): pass", TypeError, "SIGNATURE must be text such as"),
        (
            'SIGNATURE = "{a: txt} -> json"\ndef run(input): pass',
            Unsupported,
            '"my_block.py" has a signature that cannot be read: ',
        ),
        ("import datetime", ImportError, "no module named 'datetime' in the sandbox of Python blocks; docs/python-blocks.md"),
        ("from os import path", ImportError, "no module named 'os' in the sandbox of Python blocks"),
        ("def run(input)\n    pass", SyntaxError, "expected ':'"),
        ("def run(input): yield infer('')\ndef on_token(token): yield", TypeError, "on_token cannot yield: "),
    ],
    ids=["no run", "on_token", "signature", "unreadable signature", "import", "from import", "syntax", "yielding on_token"],
)
def test_a_file_that_is_no_block_says_why(write: Write, source: str, kind: type[Exception], message: str) -> None:
    block = write(source)
    with pytest.raises(kind) as caught:
        play(block, None, [{"token": "a"}])
    assert (caught.value.message if isinstance(caught.value, CuttlefishError) else str(caught.value)).startswith(message)


def test_modules_of_the_sandbox_import_and_nothing_of_ours_leaks(write: Write) -> None:
    block = write(
        "import json, re\nfrom collections import OrderedDict\ndef run(input):\n    return json.loads('[1]') + [_event is None]"
    )
    with pytest.raises(NameError, match="_event"):
        run_block(block, None)
    assert "my_block" not in sys.modules


def test_an_absent_block_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r'^there is no block ".*/absent\.py"$'):
        run_block(tmp_path / "absent.py", None)


@pytest.mark.parametrize("name", ["../a", "/etc/hosts", ".", ""])
def test_files_of_a_test_stay_in_its_folder(write: Write, name: str) -> None:
    with pytest.raises(ValueError, match=r"is no path of a file below the current folder$"):
        run_block(write(COUNT), {"path": "a"}, files={name: ""})


# Exact scripts


def test_a_script_is_told_as_it_is(write: Write) -> None:
    opened = {"event": "opened", "handle": 7, "len": 3}
    sliced = {"event": "sliced", "text": "a b", "next_offset": 3}
    played = play(write(COUNT), {"path": "x"}, [opened, sliced, {"event": "emitted"}])
    assert played.result == {"path": "x", "words": 2}
    assert played.commands[1] == {"cmd": "slice", "handle": 7, "offset": 0, "len": 8}
    assert played.events == [opened, sliced, {"event": "emitted"}]
    assert play(write(COUNT), {"path": "x"}, [opened]).result is None


def test_a_script_tells_tokens(write: Write) -> None:
    done = {"event": "infer_done", "text": "a b", "tokens_out": 2}
    assert play(write(ASK), "x", [{"token": "a"}, {"token": " b"}, done]).result[3] == ["a", " b"]


def test_a_script_may_end_in_fail_and_not_go_on_after_the_end(write: Write) -> None:
    block = write("def run(input):\n    yield emit(1)\n    fail('why', 'so')")
    emitted = {"event": "emitted"}
    assert play(block, None, [emitted]).commands[-1] == {"cmd": "fail", "code": "why", "message": "so"}
    with pytest.raises(ValueError, match=r'^"my_block\.py" is over with "fail" after 1 of 2 events$'):
        play(block, None, [emitted, emitted])


# Cases


def test_a_case_is_replayed_and_its_first_difference_told(write: Write, tmp_path: Path) -> None:
    case = tmp_path / "case.jsonl"
    emit = '{"command": {"cmd": "emit", "progress": 3}}\n{"event": {"event": "emitted"}}\n'
    case.write_text(f'{{"input": 3}}\n{emit}{{"command": {{"cmd": "done", "result": 4}}}}\n')
    replay_case(write("def run(input):\n    yield emit(input)\n    return input + 1"), case)
    with pytest.raises(AssertionError, match=r"case\.jsonl:4: command\.result: expected 4, got 5$"):
        replay_case(write("def run(input):\n    yield emit(input)\n    return input + 2"), case)
    with pytest.raises(BadConversation):
        replay_case(write("def run(input):\n    pass"), tmp_path / "absent.jsonl")


# The sandbox beside it


def test_what_can_be_imported_is_what_the_sandbox_has(write: Write) -> None:
    ours = {path.stem for path in (Path(__file__).parent.parent / "abi" / "guests" / "python" / "modules").glob("*.py")}
    assert ours <= SANDBOX_MODULES
    block = write("""
def run(input):
    found = []
    for name in input:
        try:
            __import__(name)
            found.append(name)
        except ImportError:
            pass
    return found
""")
    others = [
        "os",
        "time",
        "datetime",
        "dataclasses",
        "enum",
        "pathlib",
        "asyncio",
        "threading",
        "socket",
        "subprocess",
        "statistics",
    ]
    names = [*sorted(SANDBOX_MODULES), *others]
    envelope = cuttlefish.run(block, names)
    assert envelope.result == sorted(SANDBOX_MODULES)
    assert result(block, names) == sorted(SANDBOX_MODULES)


@pytest.mark.parametrize(
    ("source", "value", "reply"),
    [(COUNT, {"path": "a.txt"}, ""), (ASK, "x", "it stops here"), (ASK, "x", "1 2 3 4 5 6 7"), (HEAR, "x", "it goes on")],
    ids=["files", "stopped by the block", "cut off", "an on_token that returns nothing"],
)
def test_a_block_does_the_same_in_the_sandbox(write: Write, tmp_path: Path, source: str, value: object, reply: str) -> None:
    text = "one två 日本語  fyra " * 9
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    block = write(source)
    envelope = cuttlefish.run(block, value, read=[tmp_path], base_dir=tmp_path, model=f"stub:{reply}")
    here = run_block(block, value, files={"a.txt": text}, replies=[reply]).result
    assert (envelope.result, envelope.error) == (here, None)
