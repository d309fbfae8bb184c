"""Blocks by name: the catalogue, what it refuses, and who wins when several have a name."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from flow_guests import passing

from cuttlefish import BlockBytes
from cuttlefish.cli import main
from cuttlefish.errors import CapabilityDenied, NotFound, SchemaMismatch
from cuttlefish.limits import Limits
from cuttlefish.pipeline.block_store import BlockStore, blocks_folder, version_key
from cuttlefish.pipeline.catalog import builtin_blocks, find_block
from cuttlefish_abi import Signature
from guests import scripted

ANY = Signature.model_validate({"input": "json", "output": "json"})
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own catalogue, and an own current folder."""
    monkeypatch.setenv("CUTTLEFISH_BLOCKS", str(tmp_path / "blocks"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "blocks"


@pytest.fixture
def store(folder: Path) -> BlockStore:
    return BlockStore(folder)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def once(*words: str) -> tuple[int, str, str]:
        code = main(list(words))
        return code, *capfd.readouterr()

    return once


def block(text: str, name: str = "b.wasm") -> BlockBytes:
    """A block that gives `text`."""
    return scripted({"cmd": "done", "result": text}, signature="json -> text", name=name)


def write(name: str, given: BlockBytes) -> str:
    Path(name).write_bytes(given.wasm)
    return name


def test_a_block_is_added_shown_run_and_removed_by_name(run: Run, folder: Path) -> None:
    write("greet.wasm", block("one"))
    assert run("block", "add", "greet.wasm") == (0, "greet@1 is added: json -> text\n", "")
    write("greet.wasm", block("two"))
    assert run("block", "add", "greet.wasm", "--version", "1.10")[1] == "greet@1.10 is added: json -> text\n"
    code, out, _ = run("block", "show", "greet", "--json")
    shown = json.loads(out)
    digest = block("two").sha256
    assert (code, shown) == (
        0,
        {
            "name": "greet",
            "version": "1.10",
            "sha256": digest,
            "size_bytes": len(block("two").wasm),
            "signature": "json -> text",
            "file": str(folder / "blobs" / f"{digest}.wasm"),
            "versions": [
                {"version": "1", "sha256": block("one").sha256, "removed": False},
                {"version": "1.10", "sha256": digest, "removed": False},
            ],
        },
    )
    assert Path(shown["file"]).read_bytes() == block("two").wasm
    Path("greet.wasm").unlink()
    for name, gives in (("greet", "two"), ("greet@1.10", "two"), ("greet@1", "one")):
        assert json.loads(run("run", name, "--input", "null")[1])["result"] == gives
    assert run("block", "rm", "greet@1.10") == (
        0,
        "greet@1.10 is removed; the same bytes may come back under this version, others may not\n",
        "",
    )
    assert json.loads(run("run", "greet", "--input", "null")[1])["result"] == "one"
    assert not Path(shown["file"]).exists()
    assert "versions:      1, 1.10 (removed)\n" in run("block", "show", "greet")[1]


def test_the_list_has_the_catalogue_and_what_comes_with_cuttlefish(run: Run) -> None:
    run("block", "add", write("b.wasm", block("x")), "--name", "word-count", "--version", "7")
    rows = json.loads(run("block", "list", "--json")[1])
    assert rows[0] == {
        "name": "word-count",
        "version": "7",
        "sha256": block("x").sha256,
        "size_bytes": len(block("x").wasm),
        "signature": "json -> text",
        "file": rows[0]["file"],
    }
    assert {row["name"]: row["builtin"] for row in rows[1:]} == dict.fromkeys(builtin_blocks(), True)
    text = run("block", "list")[1]
    assert text.startswith("word-count@7  ")
    assert "  (the catalogue has one of this name)\n" in text


def test_a_file_wins_over_the_catalogue_and_the_catalogue_over_what_comes_with_cuttlefish(store: BlockStore) -> None:
    here, limits = Path(), Limits()
    shipped = builtin_blocks()["word-count"].read_bytes()
    assert find_block("word-count", here, limits).wasm == shipped
    store.add(block("kept"), ANY, "word-count", "2")
    assert find_block("word-count", here, limits).wasm == block("kept").wasm
    assert find_block("word-count@2", here, limits) == BlockBytes("word-count@2.wasm", block("kept").wasm)
    Path("word-count").mkdir()  # a folder of the name is no block
    assert find_block("word-count", here, limits).wasm == block("kept").wasm
    Path("word-count").rmdir()
    write("word-count", block("a file"))
    assert find_block("word-count", here, limits).wasm == block("a file").wasm
    Path("word-count").unlink()
    store.remove("word-count@2")
    assert find_block("word-count", here, limits).wasm == shipped


def test_a_pipeline_names_blocks_of_the_catalogue(run: Run) -> None:
    run("block", "add", write("b.wasm", passing("text -> {said: text}", '{"said":', "}")), "--name", "say", "--version", "1.0")
    run("block", "add", write("b.wasm", passing("text -> {said: text}", '{"said": "again",  "x":', "}")), "--name", "say")
    Path("p.toml").write_text(
        'name = "p"\n[nodes.a]\nblock = "say@1.0"\n[nodes.b]\nblock = "say"\ninput = "a.out.said"\n'
    )  # fmt: skip
    assert json.loads(run("run", "p.toml", "--input", '"hello"')[1])["result"]["said"] == "again"
    Path("p.toml").write_text('name = "p"\nblock = "say@1.1"\n')
    code, out, _ = run("check", "p.toml")
    assert code == 2
    assert out == 'p.toml:2: there is no version "1.1" of the block "say" in the catalogue; did you mean "1.0"? (not_found)\n'


IN_ORDER = {
    "numbers": ["0.9", "1", "1.0", "1.0.0", "1.9", "1.10", "2", "10"],
    "before a release": ["1.0-alpha", "1.0-alpha.2", "1.0-alpha.10", "1.0-beta", "1.0", "1.0.1-rc", "1.0.1"],
    "letters at the end": ["1.0a1", "1.0rc2", "1.0rc10", "1.0", "1.1a", "1.1"],
    "words": ["alpha", "v1.9", "v1.10", "0"],
}


@pytest.mark.parametrize("versions", IN_ORDER.values(), ids=IN_ORDER.keys())
def test_versions_are_ordered_by_their_numbers(versions: list[str]) -> None:
    backwards = versions[::-1]
    assert sorted(backwards, key=version_key) == versions


def test_a_block_in_python_is_built_and_then_added(run: Run, folder: Path) -> None:
    Path("shout_it.py").write_text('SIGNATURE = "text -> text"\n\n\ndef run(input):\n    return input.upper()\n')
    assert run("block", "add", "shout_it.py") == (0, "shout-it@1 is added: text -> text\n", "")
    Path("shout_it.py").unlink()
    code, out, _ = run("run", "shout-it", "--input", '"hello"')
    assert (code, json.loads(out)["result"]) == (0, "HELLO")
    Path("broken.py").write_text("def run(input)\n")
    code, out, err = run("block", "add", "broken.py")
    assert (code, out) == (1, "")
    assert "line 1" in err


def test_the_newest_version_is_not_the_one_added_last(store: BlockStore) -> None:
    for version in ("10", "1.9", "2", "1.10", "10-rc1"):
        store.add(block("v"), ANY, "b", version)
    assert [entry.version for entry in store.entries()] == ["1.9", "1.10", "2", "10-rc1", "10"]
    found = store.find("b")
    assert found is not None
    assert found.version == "10"


def test_a_version_never_gets_other_bytes_and_the_same_are_there_already(store: BlockStore) -> None:
    entry, is_new = store.add(block("one"), ANY, "b", "1")
    assert is_new
    assert store.add(block("one"), ANY, "b", "1") == (entry, False)
    assert store.add(block("one"), ANY, "b") == (entry, False)
    with pytest.raises(SchemaMismatch) as caught:
        store.add(block("two"), ANY, "b", "1")
    assert caught.value.message == (
        f'"b@1" is there already, with other bytes (sha256 {block("one").sha256[:12]}…); what a version means never changes: '
        "give another with --version"
    )
    assert store.read(entry).wasm == block("one").wasm
    assert store.add(block("two"), ANY, "b")[0].version == "2"


def test_a_removed_version_remembers_its_bytes(store: BlockStore) -> None:
    entry, _ = store.add(block("one"), ANY, "b", "1")
    store.remove("b@1")
    with pytest.raises(NotFound) as missing:
        store.find("b@1")
    assert missing.value.message == 'the block "b@1" was removed from the catalogue; no other version is there'
    with pytest.raises(SchemaMismatch) as caught:
        store.add(block("two"), ANY, "b", "1")
    assert caught.value.message == (
        f'"b@1" was removed, and had other bytes (sha256 {block("one").sha256[:12]}…); what a version means never changes: '
        "give another with --version"
    )
    assert store.add(block("two"), ANY, "b")[0].version == "2", "the number of a removed version is not given again"
    assert store.add(block("one"), ANY, "b", "1") == (entry, True)
    assert store.read(entry).wasm == block("one").wasm


def test_bytes_that_two_versions_share_stay_until_the_last_is_removed(store: BlockStore) -> None:
    entry, _ = store.add(block("one"), ANY, "a", "1")
    store.add(block("one"), ANY, "b", "1")
    store.remove("b@1")
    assert store.read(entry).wasm == block("one").wasm
    store.remove("a@1")
    assert not store.blob(entry).exists()


BROKEN = {
    "cut short": (b'{"format": 1, "blo', "is not valid JSON at line 1 column 15: a string starts here and never ends"),
    "empty": (b"", "is not valid JSON at line 1 column 1: a value belongs here"),
    "another form": (b'{"format": 1}', "is not an index at blocks"),
    "a list": (b"[]", "is not an index"),
    "a digest that is a path": (
        b'{"format":1,"blocks":[{"name":"b","version":"1","sha256":"../../x","size_bytes":1,'
        b'"signature":{"input":"json","output":"json"}}]}',
        "is not an index at blocks.0.sha256",
    ),
    "gone": (None, "is gone"),
}


@pytest.mark.parametrize(("data", "what"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_index_says_what_to_do_and_is_never_an_empty_one(store: BlockStore, data: bytes | None, what: str) -> None:
    store.add(block("one"), ANY, "b", "1")
    if data is None:
        store.index.unlink()
    else:
        store.index.write_bytes(data)
    attempts: list[Callable[[], object]] = [
        store.entries,
        lambda: store.add(block("two"), ANY, "b", "2"),
        lambda: store.remove("b@1"),
        lambda: find_block("word-count", Path(), Limits()),
    ]
    for attempt in attempts:
        with pytest.raises(SchemaMismatch) as caught:
            attempt()
        assert caught.value.message == (
            f'the index of the catalogue of blocks, "{store.index}", {what}. Put a copy of it back, or move the folder '
            f'"{store.folder}" away and add the blocks again (their bytes are in its blobs)'
        )
    assert (store.index.read_bytes() if store.index.exists() else None) == data, "it is left for its owner to look at"


def test_an_index_with_a_version_twice_is_broken(store: BlockStore) -> None:
    store.add(block("one"), ANY, "b", "1")
    index = json.loads(store.index.read_bytes())
    index["blocks"] *= 2
    store.index.write_text(json.dumps(index))
    with pytest.raises(SchemaMismatch, match='has "b@1" twice'):
        store.entries()


def test_the_catalogue_of_a_newer_cuttlefish_is_left_alone(store: BlockStore) -> None:
    store.folder.mkdir()
    store.index.write_text('{"format": 2, "blocks": {}}')
    with pytest.raises(SchemaMismatch) as caught:
        store.add(block("one"), ANY, "b", "1")
    assert caught.value.message == (
        f'the catalogue of blocks "{store.folder}" was written by a newer cuttlefish; update this one'
    )  # fmt: skip


@pytest.mark.parametrize("what", ["damaged", "lost"])
def test_bytes_that_are_not_those_of_the_index_are_refused_and_mended_by_adding_them_again(store: BlockStore, what: str) -> None:
    entry, _ = store.add(block("one"), ANY, "b", "1")
    if what == "lost":
        store.blob(entry).unlink()
    else:
        store.blob(entry).write_bytes(block("two").wasm)
    with pytest.raises(SchemaMismatch) as caught:
        find_block("b", Path(), Limits())
    assert caught.value.message == (
        f'the bytes of "b@1" in the catalogue are {what}; add the same file again to mend them: '
        "cuttlefish block add FILE --name b --version 1"
    )
    assert store.add(block("one"), ANY, "b", "1") == (entry, False)
    assert store.read(entry).wasm == block("one").wasm


def test_a_block_that_is_refused_is_not_added(run: Run, folder: Path) -> None:
    Path("x.wasm").write_bytes(b"(module)")
    assert run("block", "add", "x.wasm") == (
        1,
        "",
        'cuttlefish: "x.wasm" is WebAssembly text; a block is its binary form: translate it with wat2wasm\n',
    )
    write("y.wasm", scripted({"cmd": "done"}, signature="{ -> text"))
    code, out, err = run("block", "add", "y.wasm")
    assert (code, out) == (1, "")
    assert err.startswith('cuttlefish: "y.wasm"')
    assert not folder.exists(), "nothing is made before all is checked"


WRONG_USE = {
    "no file": (["add", "absent.wasm"], 'there is no block "absent.wasm"'),
    "a bad name": (
        ["add", "b.wasm", "--name", "../b"],
        '"../b" cannot be a block\'s name: letters, digits, . _ and -, 64 at most, and no .wasm at the end; give one with --name',
    ),
    "a bad version": (
        ["add", "b.wasm", "--version", "1/2"],
        '"1/2" cannot be a version: letters, digits, . _ and -, 64 at most, starting with a letter or digit',
    ),
    "showing what is not there": (["show", "sum"], 'there is no block "sum" in the catalogue; did you mean "sums"?'),
    "showing what is in no catalogue": (
        ["show", "join"],
        '"join" comes with cuttlefish and is not in the catalogue. Show it with: cuttlefish block inspect join',
    ),
    "a version that is not there": (
        ["show", "sums@1.21"],
        'there is no version "1.21" of the block "sums" in the catalogue; did you mean "1.2"?',
    ),
    "removing what is not there": (["rm", "sum@1"], 'there is no block "sum@1" in the catalogue; did you mean "sums"?'),
    "removing no version": (["rm", "sums"], '"sums" names no version to remove; versions: sums@1.2'),
}


@pytest.mark.parametrize(("words", "sentence"), WRONG_USE.values(), ids=WRONG_USE.keys())
def test_wrong_use_is_one_line_and_changes_nothing(run: Run, store: BlockStore, words: list[str], sentence: str) -> None:
    write("b.wasm", block("x"))
    store.add(block("one"), ANY, "sums", "1.2")
    before = store.index.read_bytes()
    assert run("block", *words) == (2, "", f"cuttlefish: {sentence}\n")
    assert store.index.read_bytes() == before


NOT_THERE = {
    "wordcount": 'there is no block "wordcount"; did you mean "word-count"? A file is written with its folder, .wasm or .py',
    "sum": 'there is no block "sum"; did you mean "sums"? A file is written with its folder, .wasm or .py',
    "word-count@1": (
        'there is no block "word-count@1": "word-count" comes with cuttlefish and has no versions. Leave the "@1" out'
    ),
    "sums@2": 'there is no version "2" of the block "sums" in the catalogue; known: 1.2',
    "./sums": 'there is no block "./sums"',
    "s" * 300: f'there is no block "{"s" * 58}…; known: sums, {", ".join(sorted(builtin_blocks()))}. '
    "A file is written with its folder, .wasm or .py",
    "a-folder": 'there is no block "a-folder"; that is a folder: give the .wasm or .py file in it',
    "a\0/b": 'there is no block "a\\u0000/b": no file can be called that',
}


@pytest.mark.parametrize(
    ("name", "sentence"), NOT_THERE.items(), ids=["builtin", "kept", "builtin version", "version", "file", "long", "folder", "nul"]
)
def test_a_name_that_nothing_has_gets_the_nearest(store: BlockStore, tmp_path: Path, name: str, sentence: str) -> None:
    store.add(block("one"), ANY, "sums", "1.2")
    (tmp_path / "a-folder").mkdir(exist_ok=True)
    with pytest.raises(NotFound) as caught:
        find_block(name, tmp_path, Limits())
    assert caught.value.message == sentence


def test_a_folder_that_cannot_be_used_is_said_as_such(store: BlockStore) -> None:
    store.folder.write_text("a file is in the way")
    for attempt in (store.entries, lambda: store.add(block("one"), ANY, "b")):
        with pytest.raises(CapabilityDenied, match=r"the catalogue of blocks .* cannot be (read|written to): "):
            attempt()


def test_an_empty_setting_is_no_setting() -> None:
    assert blocks_folder({"CUTTLEFISH_BLOCKS": ""}) == blocks_folder({})
    assert blocks_folder({"CUTTLEFISH_BLOCKS": "x"}) == Path("x")
    assert blocks_folder({}).name == "blocks"


def failing_after(calls: int, real: Callable[..., object]) -> Callable[..., object]:
    """A function that works so many times, and then finds the disk full."""
    left = [calls]

    def call(*arguments: object) -> object:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= 1
        return real(*arguments)

    return call


@pytest.mark.parametrize(("owner", "name", "calls"), [(os, "fsync", 4), (Path, "replace", 2)], ids=["fsync", "replace"])
def test_a_full_disk_at_any_moment_leaves_a_whole_catalogue(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, calls: int
) -> None:
    entry, _ = store.add(block("one"), ANY, "b", "1")
    for number in range(calls):
        text = f"two, in attempt {number}"
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, failing_after(number, getattr(owner, name)))
            with pytest.raises(CapabilityDenied) as caught:
                store.add(block(text), ANY, "b", f"2.{number}")
        assert caught.value.message == f'the catalogue of blocks "{store.folder}" cannot be written to: no space left on device'
        for there in store.entries():
            store.read(there)
        assert store.entries()[0] == entry
        assert not list(store.folder.glob("**/.aside-*"))
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, failing_after(calls, getattr(owner, name)))
        assert store.add(block("three"), ANY, "b", "3")[1]


def test_what_a_killed_writer_left_is_removed_by_the_next(store: BlockStore) -> None:
    store.add(block("one"), ANY, "b", "1")
    for left in (store.folder / ".aside-x", store.folder / "blobs" / ".aside-y"):
        left.write_bytes(b"half")
    store.add(block("two"), ANY, "b", "2")
    assert not list(store.folder.glob("**/.aside-*"))


WRITER = """
import sys
from pathlib import Path
from cuttlefish import BlockBytes
from cuttlefish.pipeline.block_store import BlockStore
from cuttlefish_abi import Signature
folder, who = Path(sys.argv[1]), sys.argv[2]
store, any = BlockStore(folder), Signature.model_validate({"input": "json", "output": "json"})
print("ready", flush=True)
sys.stdin.readline()
for number in range(20):
    entry, _ = store.add(BlockBytes("b", f"{who} {number}".encode()), any, "shared")  # takes the next number
    assert store.read(entry).wasm == f"{who} {number}".encode()
    store.add(BlockBytes("b", b"the same for all"), any, f"own-{who}", str(number))
    assert store.find(entry.full_name) == entry
    if number % 2:
        store.remove(f"own-{who}@{number}")
"""


def test_writers_at_the_same_time_lose_nothing_and_never_show_a_part(store: BlockStore) -> None:
    """Real processes, all let go at once; each takes numbers of one name, and bytes that all share come and go."""
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, store.folder, str(who)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for who in range(4)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(b"\n")
        writer.stdin.flush()
    while any(writer.poll() is None for writer in writers):
        for entry in store.entries():
            if entry.name == "shared":
                store.read(entry)
    for writer in writers:
        writer.communicate()
    assert [writer.returncode for writer in writers] == [0] * 4
    shared = [entry for entry in store.entries() if entry.name == "shared"]
    assert [entry.version for entry in shared] == [str(number) for number in range(1, 81)]
    texts = {store.read(entry).wasm for entry in shared}
    assert texts == {f"{who} {number}".encode() for who in range(4) for number in range(20)}
    for who in range(4):
        own = [entry for entry in store.entries() if entry.name == f"own-{who}"]
        assert [entry.version for entry in own] == [str(number) for number in range(0, 20, 2)]
        assert store.read(own[0]).wasm == b"the same for all"
