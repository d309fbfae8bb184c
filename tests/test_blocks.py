"""The blocks that ship, as compiled: conversations, counts, memory, exports, and the build itself."""

import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio
import wasmtime

from cuttlefish import open_host
from cuttlefish.authoring.conversations import case_files, read_conversation
from cuttlefish.authoring.replay import replay
from cuttlefish.engine import guest as engine
from cuttlefish.engine.module import CompiledModule
from cuttlefish.limits import Limits

ROOT = Path(__file__).resolve().parent.parent
BLOCKS = ROOT / "blocks"
SIGNATURES = {
    "chunk": {"input": "{pages: [{text: text}]}", "output": "{chunks: [{page: number, text: text}]}"},
    "classify": {"input": "{text: text, labels: [text]}", "output": "{route: text, label: text}"},
    "extract": {"input": "{text: text, fields: json}", "output": "{values: json}"},
    "join": {"input": "{items: [json]}", "output": "{text: text, items: [json], count: number}"},
    "read-document": {
        "input": "{path: text}",
        "output": "{path: text, kind: text, pages: [{page: number, text: text, error: text}]}",
    },
    "summarize": {"input": "{path: text}", "output": "{path: text, summary: text}"},
    "word-count": {"input": "{path: text}", "output": "{path: text, lines: number, words: number, chars: number}"},
}
NAMES = list(SIGNATURES)


@dataclass(frozen=True)
class Compiled:
    """Held by fixtures and not by this module: wasmtime cannot free what is left when the interpreter ends."""

    engine: wasmtime.Engine
    module: wasmtime.Module


def load(path: Path) -> Compiled:
    engine = wasmtime.Engine()
    return Compiled(engine, wasmtime.Module.from_file(engine, str(path)))


class Guest:
    """A block and nothing else: no files, no model, no limit but memory."""

    def __init__(self, compiled: Compiled, memory_bytes: int = 256 << 20) -> None:
        self.store = wasmtime.Store(compiled.engine)
        self.store.set_limits(memory_size=memory_bytes)
        self.exports = wasmtime.Instance(self.store, compiled.module, []).exports(self.store)
        self.memory = self.exports["memory"]

    def call(self, name: str, *arguments: int) -> int:
        return self.exports[name](self.store, *arguments) & 0xFFFFFFFF

    def send(self, name: str, message: bytes) -> int:
        address = self.call("cf_alloc", len(message))
        assert address != 0
        self.memory.write(self.store, message, address)
        return self.call(name, address, len(message))

    def payload(self, descriptor: int) -> Any:
        address, length = struct.unpack("<II", self.memory.read(self.store, descriptor, descriptor + 8))
        return json.loads(self.memory.read(self.store, address, address + length).decode())

    def init(self, value: object, *, ascii: bool = False) -> Any:
        return self.payload(self.send("cf_init", json.dumps(value, ensure_ascii=ascii).encode()))

    def step(self, event: object, *, ascii: bool = False) -> Any:
        return self.payload(self.send("cf_step", json.dumps(event, ensure_ascii=ascii).encode()))

    def memory_bytes(self) -> int:
        return self.memory.data_len(self.store)


def cut(data: bytes, offset: int, length: int) -> dict[str, Any]:
    end = min(len(data), offset + length)
    while end < len(data) and data[end] & 0xC0 == 0x80:
        end -= 1
    return {"event": "sliced", "text": data[offset:end].decode(), "next_offset": end}


def read_text(
    guest: Guest, text: str, *, window: int = 1 << 16, reply: str = "A note.", ascii: bool = False
) -> list[dict[str, Any]]:
    """Let a block read `text`, in windows no larger than `window`, and return all of its commands."""
    data = text.encode()
    commands = [guest.init({"path": "a.txt"})]
    while commands[-1]["cmd"] not in ("done", "fail"):
        match commands[-1]:
            case {"cmd": "open"}:
                event = {"event": "opened", "handle": 1, "len": len(data), "kind": {"kind": "text"}}
            case {"cmd": "slice", "offset": offset, "len": length}:
                event = cut(data, offset, min(length, window))
            case {"cmd": "infer"}:
                event = {"event": "infer_done", "text": reply, "tokens_out": 3}
            case {"cmd": "emit"}:
                event = {"event": "emitted"}
        commands.append(guest.step(event, ascii=ascii))
    return commands


@pytest.fixture(scope="module")
def blocks() -> dict[str, Compiled]:
    return {name: load(BLOCKS / name / f"{name}.wasm") for name in NAMES}


# Conversations


@pytest.fixture(scope="module")
def modules() -> dict[str, CompiledModule]:
    """The blocks as a host would load them."""

    async def load() -> dict[str, CompiledModule]:
        async with open_host() as host:
            return {name: (await host.inspect(BLOCKS / name / f"{name}.wasm")).module for name in NAMES}

    return trio.run(load)


@contextmanager
def started(module: CompiledModule) -> Iterator[engine.Guest]:
    guest = engine.Guest(module, Limits())
    try:
        guest.start()
        yield guest
    finally:
        guest.close()


@pytest.mark.parametrize("case", sorted(BLOCKS.glob("*/cases/*.jsonl")), ids=lambda path: f"{path.parent.parent.name}-{path.stem}")
def test_a_block_answers_as_its_recorded_conversation(modules: dict[str, CompiledModule], case: Path) -> None:
    conversation = read_conversation(case)
    with started(modules[case.parent.parent.name]) as guest:
        assert replay(guest, conversation) is None
    assert conversation.is_over


@pytest.mark.parametrize("name", NAMES)
def test_init_starts_anew_whatever_came_before(modules: dict[str, CompiledModule], name: str) -> None:
    cases = [read_conversation(case) for case in case_files(BLOCKS / name)]
    assert len(cases) > 10
    with started(modules[name]) as guest:
        assert not any(replay(guest, case) for case in [*cases, *reversed(cases)])


def example_input(name: str) -> Any:
    return json.loads((BLOCKS / name / "input.example.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_a_block_takes_its_example_and_has_a_readme_that_shows_its_signature(blocks: dict[str, Compiled], name: str) -> None:
    assert Guest(blocks[name]).init(example_input(name))["cmd"] in ("open", "infer", "done")
    readme = (BLOCKS / name / "README.md").read_text(encoding="utf-8")
    assert f"\n    {SIGNATURES[name]['input']} -> {SIGNATURES[name]['output']}\n" in readme


def codes_of(case: Path) -> set[str]:
    lines = case.read_text(encoding="utf-8").splitlines()
    return {command["code"] for line in lines if (command := json.loads(line).get("command", {})).get("cmd") == "fail"}


@pytest.mark.parametrize("name", NAMES)
def test_each_code_of_a_readme_has_a_conversation_that_ends_with_it(name: str) -> None:
    readme = (BLOCKS / name / "README.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(\w+)` \|", readme.split("\n| code |")[1], re.MULTILINE))
    shown = set().union(*(codes_of(case) for case in (BLOCKS / name / "cases").glob("*.jsonl")))
    assert shown - {"bad_event"} <= documented
    assert documented - shown <= {"too_large"}  # a case of that size is made by a test of its own


# Word count

TEXTS = {
    "empty": "",
    "one word": "word",
    "no word": " \t\r\n\v\f",
    "white space at both ends": "\n\n a  b\t\tc \r\n",
    "separators that are no ASCII white space": "a\x1cb c\u00a0d e\u3000f g\u2028h i\x85j",
    "control characters": "a\x00b \x01 \x7f\x1f",
    "quotes and backslashes": '"a\\b" \\u0041 \\\\ "\\n"\n/\\',
    "many scripts": "blå båd 日本語 текст 😀👩‍👩‍👧 e\u0301 \ufeff €" * 5,
    "windows line ends": "one\r\ntwo\r\n\r\nthree",
}


@pytest.mark.parametrize("window", [4, 5, 7, 64, 1 << 16])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_counts_are_those_of_python_whatever_the_window(blocks: dict[str, Compiled], text: str, window: int) -> None:
    expected = {"path": "a.txt", "lines": text.count("\n"), "words": len(text.encode().split()), "chars": len(text)}
    for ascii in (False, True):
        commands = read_text(Guest(blocks["word-count"]), text, window=window, ascii=ascii)
        assert commands[-1] == {"cmd": "done", "result": expected}


def test_counts_of_a_large_mixed_text_are_those_of_python(blocks: dict[str, Compiled]) -> None:
    choose = random.Random(7).choice
    text = "".join(
        choose(["alpha", "γάμμα", "日本", '"q"', "😀", "\x01"]) + choose([" ", "  ", "\n", "\r\n", "\t"]) for _ in range(100_000)
    )
    commands = read_text(Guest(blocks["word-count"]), text)
    expected = {"path": "a.txt", "lines": text.count("\n"), "words": len(text.encode().split()), "chars": len(text)}
    assert commands[-1] == {"cmd": "done", "result": expected}
    assert {command["len"] for command in commands if command["cmd"] == "slice"} == {65_536}


# Summarize

LONG_TEXTS = {
    "prose": "The council met, and nobody agreed on anything but the date. " * 500,
    "no spaces at all": "x" * 20_000,
    "spaces": ("word" + " " * 3_000) * 10,
    "Chinese": "港口委员会同意疏浚北部港池。" * 400,
    "four-byte characters": "😀a" * 3_000,
    "columns of numbers": "".join(f"{i * 7919 % 100_003},{i},{i % 7}.{i % 997}\n" for i in range(1_500)),
}


def parts_of(commands: list[dict[str, Any]]) -> list[str]:
    prompts = [command["prompt"] for command in commands if command["cmd"] == "infer"]
    return [prompt.split("<text>\n", 1)[1].rsplit("\n</text>", 1)[0] for prompt in prompts if "\n<text>\n" in prompt]


@pytest.mark.parametrize("window", [61, 700, 6_000])
@pytest.mark.parametrize("text", LONG_TEXTS.values(), ids=LONG_TEXTS.keys())
def test_the_parts_of_a_text_are_the_whole_text(blocks: dict[str, Compiled], text: str, window: int) -> None:
    commands = read_text(Guest(blocks["summarize"]), text, window=window)
    assert commands[-1]["cmd"] == "done"
    assert "".join("".join(parts_of(commands)).split()) == "".join(text.split())


@pytest.mark.parametrize("text", LONG_TEXTS.values(), ids=LONG_TEXTS.keys())
def test_no_prompt_outgrows_a_small_context(blocks: dict[str, Compiled], text: str) -> None:
    reply = text[:5_000]
    commands = read_text(Guest(blocks["summarize"]), text, reply=f"Note: {reply}")
    prompts = [command["prompt"] for command in commands if command["cmd"] == "infer"]
    assert len(prompts) > 2
    for prompt in prompts:
        letters = sum(character.isascii() and (character.isalpha() or character == " ") for character in prompt)
        others = len(prompt.encode()) - letters
        # At worst a token for each byte of other scripts, digits and signs; the instructions hold few of these.
        assert others + letters / 3 <= 1_400 + 150


def test_a_part_ends_at_a_word_where_it_can(blocks: dict[str, Compiled]) -> None:
    commands = read_text(Guest(blocks["summarize"]), LONG_TEXTS["prose"])
    assert {word for part in parts_of(commands) for word in part.split()} == set(LONG_TEXTS["prose"].split())


def said_of_a_cut_reply(blocks: dict[str, Compiled], reply: str) -> dict[str, Any]:
    """The last command of summarize after a reply that was cut off, twice if it is asked for again."""
    guest = Guest(blocks["summarize"])
    guest.init({"path": "a.png"})
    command = guest.step({"event": "opened", "handle": 1, "len": 9, "kind": {"kind": "image", "format": "png"}})
    while command["cmd"] not in ("done", "fail"):
        tokens = command.get("max_tokens", 0)
        cut_reply = {"event": "infer_done", "text": reply, "tokens_out": tokens, "finish_reason": "length"}
        command = guest.step(cut_reply if command["cmd"] == "infer" else {"event": "emitted"})
    return command


@pytest.mark.parametrize(
    ("kept", "lost"),
    [
        ("One two.", " Three"),
        ("One two!", " Thr"),
        ('He said "go home."', " The"),
        ("It cost 18.4 euros. Nobody paid.", " It cost 18."),
        ("They came in 2019.", " In 20"),
        ("They met Dr. Lee, Mr. Ito and J. Smith.", " Then Mrs."),
        ("Many came, e.g. Ann.", " Others, i.e. B"),
        ("They wait ... and see.", " They"),
        ("The pass is wide and it is steep.", " It is 5 fath. deep"),
        ("Sie kam am 3. März.", " Er kam am 4. Apr"),
        ("1. It rained at night.", " 2."),
        ("雪が降った。「寒い。」", "人は"),
        ("बर्फ गिरी।", " लोग"),
        ("It snowed.", "\n\nIt al"),
        ("It snowed. It rained.", " It snowed. It rained. It snowed. It rained. It snowed. It"),
        ("It snowed**.**", " But"),
    ],
)
def test_a_summary_that_was_cut_ends_with_a_whole_sentence(blocks: dict[str, Compiled], kept: str, lost: str) -> None:
    result = said_of_a_cut_reply(blocks, kept + lost)["result"]
    assert result["summary"] == kept
    assert result["left_out"] == "the end of the model's reply, cut off as too long"


@pytest.mark.parametrize(
    "reply", ["", "...", "1. 2. 3.", "Dr.", "Sure! The crew of the pass went", "The crew, which", "雪が", "A. B. C."]
)
def test_a_cut_reply_without_whole_sentences_never_passes_for_a_summary(blocks: dict[str, Compiled], reply: str) -> None:
    assert said_of_a_cut_reply(blocks, reply)["code"] == "cut_off"


@pytest.mark.parametrize("seed", range(150))
def test_whatever_a_cut_reply_holds_only_its_sentences_come_out(blocks: dict[str, Compiled], seed: int) -> None:
    random_source = random.Random(seed)
    pieces = [*PIECES, "word ", "Dr.", "3.", '"', "...", "**", "?"]
    reply = "".join(random_source.choice(pieces) for _ in range(random_source.randrange(60)))
    command = said_of_a_cut_reply(blocks, reply)
    if command["cmd"] == "fail":
        assert command["code"] == "cut_off"
        return
    summary = command["result"]["summary"]
    assert reply.strip(" \t\n\v\f\r").startswith(summary)
    assert summary.rstrip("\"')]*”’»」』）")[-1] in ".!?。"
    assert command["result"]["left_out"]


# Read-document


@pytest.mark.parametrize("window", [4, 7, 1 << 16])
@pytest.mark.parametrize("text", [*TEXTS.values(), "one\ftwo\n\f\n\f\fé", "\f", "a\f"])
def test_the_pages_of_a_text_are_the_whole_text(blocks: dict[str, Compiled], text: str, window: int) -> None:
    result = read_text(Guest(blocks["read-document"]), text, window=window)[-1]["result"]
    expected = text.removesuffix("\f").split("\f")
    assert result["pages"] == [{"page": page, "text": said, "error": ""} for page, said in enumerate(expected)]


def test_a_text_just_below_the_cap_fits_into_a_guest(blocks: dict[str, Compiled]) -> None:
    guest = Guest(blocks["read-document"])
    text = "\x01" * 800_000 + "a line of text\n" * 738_000
    assert 15 << 20 < len(json.dumps(text)) < 16 << 20
    assert read_text(guest, text)[-1]["result"]["pages"][0]["text"] == text
    assert guest.memory_bytes() < 128 << 20


@pytest.mark.parametrize(
    "text", ["\x01" * (3 << 20), "\f" * (1 << 19), "\n" * (9 << 20)], ids=["control characters", "pages", "line feeds"]
)
def test_a_text_that_outgrows_the_cap_as_json_is_refused(blocks: dict[str, Compiled], text: str) -> None:
    guest = Guest(blocks["read-document"])
    assert read_text(guest, text)[-1]["code"] == "too_large"
    assert guest.memory_bytes() < 128 << 20


@pytest.mark.parametrize("page", ["x" * 1_000_000, ""], ids=["long pages", "no text"])
def test_a_document_that_outgrows_the_cap_is_refused(blocks: dict[str, Compiled], page: str) -> None:
    guest = Guest(blocks["read-document"])
    guest.init({"path": "a.pdf"})
    kind = {"kind": "document", "pages": 4_000_000_000, "has_text_layer": True}
    command = guest.step({"event": "opened", "handle": 1, "len": 9, "kind": kind})
    attempted = {
        "event": "page_text_attempted",
        "text": page or None,
        "error": None if page else "document_invalid: " + "x" * 9_000,
    }
    while command["cmd"] != "fail":
        command = guest.step(attempted if command["cmd"] == "page_text_opt" else {"event": "emitted"})
    assert command["code"] == "too_large"
    assert guest.memory_bytes() < 128 << 20


# Chunk


def chunks_of(blocks: dict[str, Compiled], text: str, **options: int) -> list[str]:
    command = Guest(blocks["chunk"]).init({"pages": [{"text": text}]} | options)
    assert command["cmd"] == "done", command
    return [chunk["text"] for chunk in command["result"]["chunks"]]


PIECES = ["a", "bc", "é", "日", "。", "」", " ", "  ", "\n", "\n\n", ". ", "! ", "\r\n", "😀", "👍🏽", "e\u0301", ") ", "\f"]


@pytest.mark.parametrize("seed", range(150))
def test_every_character_of_a_page_is_in_a_chunk_that_fits(blocks: dict[str, Compiled], seed: int) -> None:
    random_source = random.Random(seed)
    text = "".join(random_source.choice(PIECES) for _ in range(random_source.randrange(80)))
    most = random_source.randrange(1, 25)
    overlap = random_source.choice([0, random_source.randrange(most)])
    chunks = chunks_of(blocks, text, max_chars=most, overlap_chars=overlap)
    assert all(len(chunk) <= most and chunk.strip() for chunk in chunks)
    reached = 0
    for chunk in chunks:
        begin = text.find(chunk, max(0, reached - overlap))
        while begin + len(chunk) <= reached:  # an earlier place where the same words stand
            begin = text.find(chunk, begin + 1)
        assert begin >= 0
        assert not text[reached:begin].strip()  # only blank chunks are left out
        reached = begin + len(chunk)
    assert not text[reached:].strip()


@pytest.mark.parametrize("text", LONG_TEXTS.values(), ids=LONG_TEXTS.keys())
def test_chunks_without_an_overlap_joined_are_the_page(blocks: dict[str, Compiled], text: str) -> None:
    chunks = chunks_of(blocks, text)
    assert max(map(len, chunks)) <= 2_000
    assert len(chunks) <= 2 * len(text) // 2_000 + 1
    if "   " not in text:
        assert "".join(chunks) == text


@pytest.mark.parametrize("text", [" " * (1 << 24), "ab" * (1 << 20)], ids=["spaces", "letters"])
def test_chunks_that_outgrow_a_result_are_refused(blocks: dict[str, Compiled], text: str) -> None:
    guest = Guest(blocks["chunk"])
    command = guest.init({"pages": [{"text": text}], "overlap_chars": 1_999})
    assert (command["code"], guest.memory_bytes() < 128 << 20) == ("too_large", True)


# Join


def test_items_that_outgrow_a_result_are_refused(blocks: dict[str, Compiled]) -> None:
    assert Guest(blocks["join"]).init({"items": ["x" * (13 << 20)] * 2})["code"] == "too_large"


def test_an_item_nested_as_deeply_as_a_host_allows_is_passed_on(blocks: dict[str, Compiled]) -> None:
    deep: Any = {"text": "deep"}
    for _ in range(126):
        deep = {"text": "deep", "in": [deep]} if _ % 2 else {"text": "deep", "in": deep}
    result = Guest(blocks["join"]).init({"items": [deep]})["result"]
    assert result == {"text": "deep", "items": [deep], "count": 1}


# Extract

FIELDS = {"who": "a name", "sum": {"type": "number"}, "paid": {"type": "bool"}}


@pytest.mark.parametrize("seed", range(200))
def test_what_comes_of_a_garbled_reply_has_the_fields_and_types_that_were_asked_for(blocks: dict[str, Compiled], seed: int) -> None:
    random_source = random.Random(seed)
    reply = list('```json\n{"who": "Ann \\"A\\" \\u00e9", "sum": -1.5e3, "paid": null}\n``` {done}')
    for _ in range(random_source.randrange(4)):
        at = random_source.randrange(len(reply))
        reply[at : at + random_source.randrange(2)] = random_source.choice(["{", "}", '"', "\\", ",", "0", "e9", "\x01", "é", ""])
    guest = Guest(blocks["extract"])
    guest.init({"text": "Ann", "fields": FIELDS})
    command = guest.step({"event": "infer_done", "text": "".join(reply), "tokens_out": 9})
    if command["cmd"] == "emit":
        guest.step({"event": "emitted"})
        command = guest.step({"event": "infer_done", "text": "".join(reply), "tokens_out": 9})
        assert command["code"] == "no_json"
    else:
        values = command["result"]["values"]
        assert list(values) == list(FIELDS)
        assert values["who"] is None or isinstance(values["who"], str)
        assert values["sum"] is None or (isinstance(values["sum"], float | int) and abs(values["sum"]) < 1e300)
        assert values["paid"] in (None, True, False)


# The boundary


@pytest.mark.parametrize("name", NAMES)
def test_a_block_exports_the_contract_and_nothing_else(blocks: dict[str, Compiled], name: str) -> None:
    assert sorted(export.name for export in blocks[name].module.exports) == [
        "cf_alloc",
        "cf_init",
        "cf_signature",
        "cf_step",
        "memory",
    ]
    assert not blocks[name].module.imports


@pytest.mark.parametrize("name", NAMES)
def test_a_block_tells_its_signature_at_any_time(blocks: dict[str, Compiled], name: str) -> None:
    guest = Guest(blocks[name])
    assert guest.payload(guest.call("cf_signature")) == SIGNATURES[name]
    guest.init(example_input(name))
    assert guest.payload(guest.call("cf_signature")) == SIGNATURES[name]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "message",
    [b"", b"null", b"[]", b'{"path":"a"', b'{"path":"a"}x', b'{"path":[97]}', b'{"path":"\xff"}', b'{"path":"a","path":"b"}'],
)
def test_unreadable_input_is_a_failure_and_no_trap(blocks: dict[str, Compiled], name: str, message: bytes) -> None:
    guest = Guest(blocks[name])
    failure = guest.payload(guest.send("cf_init", message))
    assert (failure["cmd"], failure["code"]) == ("fail", "bad_input")
    assert failure["message"].split(" (optional: ")[0] == f"the input is not {SIGNATURES[name]['input']}"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "message", [b"", b"null", b"{}", b'{"event":"opened"}', b'{"event":7}', b"[" * 100_000, b'{"x":' * 100_000]
)
def test_an_unreadable_event_is_a_failure_and_no_trap(blocks: dict[str, Compiled], name: str, message: bytes) -> None:
    guest = Guest(blocks[name])
    guest.init(example_input(name))
    failure = guest.payload(guest.send("cf_step", message))
    assert failure["code"] == "bad_event"


@pytest.mark.parametrize("name", NAMES)
def test_a_message_of_length_zero_may_have_any_address(blocks: dict[str, Compiled], name: str) -> None:
    guest = Guest(blocks[name])
    assert guest.payload(guest.call("cf_init", 0, 0))["code"] == "bad_input"
    assert guest.payload(guest.call("cf_step", 0xFFFFFFFF - (1 << 32), 0))["code"] == "bad_event"


@pytest.mark.parametrize("name", NAMES)
def test_a_message_too_large_for_memory_gets_no_buffer_and_later_ones_do(blocks: dict[str, Compiled], name: str) -> None:
    guest = Guest(blocks[name], memory_bytes=4 << 20)
    for length in (-1, 0x7FFFFFFF, 64 << 20):
        assert guest.call("cf_alloc", length) == 0
    assert guest.init(example_input(name)) == Guest(blocks[name]).init(example_input(name))


# Memory over a long run

# Answers each command from a table that is indexed by the first letter of the command's name, and
# counts the digits at $counter up, so that offsets always advance. In wasm, because 200,000 steps
# through Python take half a minute.
DRIVER = """
(module
  (import "block" "memory" (memory $block 1))
  (import "block" "cf_alloc" (func $alloc (param i32) (result i32)))
  (import "block" "cf_step" (func $step (param i32 i32) (result i32)))
  (memory $own (export "memory") 1)
  (func (export "run") (param $descriptor i32) (param $steps i32) (param $counter i32) (result i32)
    (local $entry i32) (local $len i32) (local $buffer i32) (local $digit i32)
    (loop $next
      (local.set $entry (i32.shl (i32.load8_u $block offset=8 (i32.load $block (local.get $descriptor))) (i32.const 3)))
      (local.set $len (i32.load $own offset=4 (local.get $entry)))
      (if (i32.eqz (local.get $len)) (then unreachable))
      (local.set $buffer (call $alloc (local.get $len)))
      (memory.copy $block $own (local.get $buffer) (i32.load $own (local.get $entry)) (local.get $len))
      (local.set $descriptor (call $step (local.get $buffer) (local.get $len)))
      (local.set $digit (local.get $counter))
      (block $counted
        (loop $carry
          (i32.store8 $own (local.get $digit) (i32.add (i32.load8_u $own (local.get $digit)) (i32.const 1)))
          (br_if $counted (i32.le_u (i32.load8_u $own (local.get $digit)) (i32.const 57)))
          (i32.store8 $own (local.get $digit) (i32.const 48))
          (local.set $digit (i32.sub (local.get $digit) (i32.const 1)))
          (br $carry)))
      (local.set $steps (i32.sub (local.get $steps) (i32.const 1)))
      (br_if $next (local.get $steps)))
    (local.get $descriptor)))
"""
FIRST_OFFSET = b"10000000"


def driver_memory(events: list[bytes]) -> tuple[bytes, int]:
    """The table, then the events; and the address of the last digit of the sliced event's next_offset."""
    table, bodies = bytearray(256 * 8), bytearray()
    letters = {b"sliced": b"s", b"infer_done": b"i", b"emitted": b"e", b"page_texted": b"p"}
    for event in events:
        letter = letters[event.split(b'"')[3]][0]
        struct.pack_into("<II", table, letter * 8, len(table) + len(bodies), len(event))
        bodies += event
    image = bytes(table + bodies)
    return image, image.index(FIRST_OFFSET) + len(FIRST_OFFSET) - 1


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("word-count", {"kind": "text"}),
        ("summarize", {"kind": "text"}),
        ("summarize", {"kind": "document", "pages": 4_000_000_000, "has_text_layer": True}),
    ],
    ids=["word-count", "summarize text", "summarize document"],
)
def test_memory_stays_flat_over_200_000_steps(blocks: dict[str, Compiled], name: str, kind: dict[str, object]) -> None:
    text = b"1234567890" * 150  # digits fill a part soonest, so every few steps go through all the kinds of work
    image, counter = driver_memory(
        [
            b'{"event":"sliced","text":"%s\xc3\xa9","next_offset":%s}' % (text, FIRST_OFFSET),
            b'{"event":"infer_done","text":"The crew cleared the \\u0070ass in four hours.","tokens_out":9}',
            b'{"event":"page_texted","text":"%s\\n"}' % text,
            b'{"event":"emitted"}',
        ]
    )
    guest = Guest(blocks[name])
    engine = blocks[name].engine
    linker = wasmtime.Linker(engine)
    for export in ("memory", "cf_alloc", "cf_step"):
        linker.define(guest.store, "block", export, guest.exports[export])
    driver = linker.instantiate(guest.store, wasmtime.Module(engine, DRIVER)).exports(guest.store)
    driver["memory"].write(guest.store, image, 0)

    guest.init({"path": "a"})
    opened = json.dumps({"event": "opened", "handle": 1, "len": 99_999_999, "kind": kind}).encode()
    descriptor = driver["run"](guest.store, guest.send("cf_step", opened), 2_000, counter)
    settled = guest.memory_bytes()
    driver["run"](guest.store, descriptor, 200_000, counter)
    assert guest.memory_bytes() == settled < 1 << 20


# The build

PROBE = """
const cuttlefish = @import("cuttlefish");

const Probe = struct {
    seen: usize = 0,
    has_asked: bool = false,

    pub const signature: cuttlefish.Signature = .{ .input = "{depth: number}", .output = "json" };
    pub const Input = struct { depth: cuttlefish.Whole(u32) };

    pub fn init(_: *Probe, input: Input) cuttlefish.Command {
        if (input.depth.value > 0) return cuttlefish.done(dig(input.depth.value));
        return cuttlefish.sliceBytes(1, 0, 9_007_199_254_740_993);
    }

    pub fn step(self: *Probe, event: cuttlefish.Event) cuttlefish.Command {
        return switch (event) {
            .sliced_bytes => |window| cuttlefish.emit(window.bytes),
            .emitted => if (self.has_asked) cuttlefish.documentText(7) else self.ask(),
            .infer_done => |reply| cuttlefish.emit(.{ .text = reply.text, .seen = self.seen, .cut = reply.isCut(8) }),
            .page_texted => |page| cuttlefish.done(if (page.coverage) |part| part.value() / 2 else null),
            else => cuttlefish.unexpected(event),
        };
    }

    fn ask(self: *Probe) cuttlefish.Command {
        self.has_asked = true;
        return cuttlefish.infer(.{ .prompt = "Look.", .max_tokens = 8, .images = &.{ 2, 3 } });
    }

    pub fn onToken(self: *Probe, token: []const u8) cuttlefish.Verdict {
        self.seen += token.len;
        return if (self.seen > 5) .stop else .go_on;
    }
};

fn dig(depth: u32) u32 {
    var ballast: [64]u32 = @splat(depth);
    const pointer: *volatile [64]u32 = &ballast;
    if (depth > 1) pointer[depth % 64] = @call(.never_inline, dig, .{depth - 1}) + 1;
    return pointer[depth % 64];
}

comptime {
    cuttlefish.exportBlock(Probe);
}
"""


def run_build(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "scripts" / "build-blocks"), *arguments]
    return subprocess.run(command, env=os.environ | {"PYTHON": sys.executable}, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The sources copied to another folder, without caches or compiled blocks, with a probe beside them; two are then built."""
    root = tmp_path_factory.mktemp("another place")
    for part in ("abi/guests/zig", "blocks"):
        shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("*.wasm"))
    (root / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "build-blocks", root / "scripts")
    (root / "blocks" / "probe").mkdir()
    (root / "blocks" / "probe" / "probe.zig").write_text(PROBE, encoding="utf-8")
    built = run_build(root, "probe", "word-count")
    assert (built.returncode, built.stderr) == (0, "")
    yield root
    shutil.rmtree(root)


@pytest.fixture
def probe(elsewhere: Path) -> Guest:
    return Guest(load(elsewhere / "blocks" / "probe" / "probe.wasm"))


def test_the_committed_blocks_are_what_their_sources_give() -> None:
    checked = run_build(ROOT, "--check")
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_a_build_in_another_folder_gives_the_same_bytes(elsewhere: Path) -> None:
    # One block stands for all: they differ in nothing that a folder could reach, and each takes seconds without a cache.
    compiled = Path("blocks", "word-count", "word-count.wasm")
    assert (elsewhere / compiled).read_bytes() == (ROOT / compiled).read_bytes()


def test_a_stale_block_is_named_with_what_to_do(elsewhere: Path) -> None:
    compiled = elsewhere / "blocks" / "probe" / "probe.wasm"
    fresh = compiled.read_bytes()
    compiled.write_bytes(fresh + b"\0")
    checked = run_build(elsewhere, "--check", "probe")
    compiled.write_bytes(fresh)
    message = "build-blocks: not what the source gives: blocks/probe/probe.wasm. Run scripts/build-blocks and commit\n"
    assert (checked.returncode, checked.stderr) == (1, message)


def test_a_token_hook_is_exported_only_by_a_block_that_has_one(probe: Guest) -> None:
    probe.init({"depth": 0})
    assert [probe.send("cf_on_token", token) for token in (b"one", b"", b"two")] == [0, 0, 1]
    assert probe.call("cf_on_token", 0, 0) == 1


def asked(probe: Guest) -> Any:
    """The probe's question to the model, which it asks second."""
    assert probe.init({"depth": 0}) == {"cmd": "slice_bytes", "handle": 1, "offset": 0, "len": 9_007_199_254_740_993}
    assert probe.step({"event": "sliced_bytes", "bytes_base64": "aGk/", "next_offset": 3}) == {"cmd": "emit", "progress": "hi?"}
    return probe.step({"event": "emitted"})


def test_the_hook_sees_tokens_between_a_question_and_its_answer(probe: Guest) -> None:
    assert asked(probe) == {"cmd": "infer", "prompt": "Look.", "max_tokens": 8, "images": [2, 3]}
    probe.send("cf_on_token", "é".encode())
    # A pair of surrogate escapes is one character.
    reply = b'{"tokens_out":1,"text":"\\ud83d\\ude00","event":"infer_done"}'
    seen = {"text": "😀", "seen": 2, "cut": False}
    assert probe.payload(probe.send("cf_step", reply)) == {"cmd": "emit", "progress": seen}


@pytest.mark.parametrize(
    ("told", "cut"),
    [
        ({"tokens_out": 8, "finish_reason": "stop"}, False),
        ({"tokens_out": 8, "finish_reason": "stopped_by_block"}, False),
        ({"tokens_out": 7, "finish_reason": "length"}, True),
        ({"tokens_out": 7}, False),
        ({"tokens_out": 8}, True),
        ({"tokens_out": 8, "finish_reason": None}, True),
    ],
)
def test_a_reply_is_cut_if_the_host_says_so_or_all_tokens_are_used_and_it_says_nothing(
    probe: Guest, told: dict[str, object], cut: bool
) -> None:
    asked(probe)
    assert probe.step({"event": "infer_done", "text": ""} | told)["progress"]["cut"] is cut


@pytest.mark.parametrize("reason", ["tired", 1, [], ""])
def test_a_reason_that_is_none_is_an_unreadable_event(probe: Guest, reason: object) -> None:
    asked(probe)
    assert probe.step({"event": "infer_done", "text": "", "tokens_out": 1, "finish_reason": reason})["code"] == "bad_event"


@pytest.mark.parametrize(("coverage", "half"), [("0.25", 0.125), ("1", 0.5), ("3e-1", 0.15), ("null", None)])
def test_a_coverage_is_read_to_the_nearest_double(probe: Guest, coverage: str, half: object) -> None:
    asked(probe)
    probe.step({"event": "infer_done", "text": "", "tokens_out": 1})
    assert probe.step({"event": "emitted"}) == {"cmd": "document_text", "handle": 7}
    page = probe.send("cf_step", b'{"event":"page_texted","text":"","coverage":%s}' % coverage.encode())
    assert probe.payload(page) == {"cmd": "done", "result": half}


@pytest.mark.parametrize("coverage", ["0.5", [1], True])
def test_a_coverage_that_is_no_number_is_an_unreadable_event(probe: Guest, coverage: object) -> None:
    asked(probe)
    probe.step({"event": "infer_done", "text": "", "tokens_out": 1})
    probe.step({"event": "emitted"})
    assert probe.step({"event": "page_texted", "text": "", "coverage": coverage})["code"] == "bad_event"


@pytest.mark.parametrize("encoded", ["aGk", "aG k", "a===", "aGk_", "aGl="])
def test_base64_that_is_not_canonical_is_an_unreadable_event(probe: Guest, encoded: str) -> None:
    probe.init({"depth": 0})
    assert probe.step({"event": "sliced_bytes", "bytes_base64": encoded, "next_offset": 3})["code"] == "bad_event"


def test_recursion_too_deep_traps_and_never_overwrites_data(probe: Guest) -> None:
    assert probe.init({"depth": 200}) == {"cmd": "done", "result": 200}
    with pytest.raises(wasmtime.Trap, match="out of bounds memory access"):
        probe.init({"depth": 100_000})


def test_memory_that_runs_out_in_a_step_traps(elsewhere: Path) -> None:
    guest = Guest(load(elsewhere / "blocks" / "probe" / "probe.wasm"), memory_bytes=1 << 20)
    guest.init({"depth": 0})
    guest.step({"event": "sliced_bytes", "bytes_base64": "", "next_offset": 3})
    guest.step({"event": "emitted"})
    reply = json.dumps({"event": "infer_done", "text": "x" * 300_000, "tokens_out": 1}).encode()
    with pytest.raises(wasmtime.Trap, match="unreachable"):
        guest.send("cf_step", reply)
