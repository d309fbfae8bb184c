"""Pipelines run: data and order, branches, rounds, items; with real wasm and real files, through the host's public face."""

import errno
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import trio
from flow_guests import choosing
from pipelines import Folder

from cuttlefish import Envelope, Finished, Host, JobStatus, Origin, Progress, TokenPiece, open_host
from cuttlefish.inference.backend import Prompt, Reply, TokenMeter, TokenSink
from cuttlefish.limits import Limits
from cuttlefish.media.capabilities import Capabilities, open_by_walking
from cuttlefish.pipeline.items import paths_of_pattern
from cuttlefish.pipeline.spec import Node, Pipeline
from guests import SPIN, echo, scripted

INFER = {"cmd": "infer", "prompt": "a b c", "max_tokens": 9}
DONE = {"cmd": "done", "result": "ok"}
NOT_TEXT = 'the input does not fit what "wrap.wasm" takes, text: input must be text, found {}'


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    async with open_host() as host:
        yield host


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """The current folder, with blocks in it."""
    monkeypatch.chdir(tmp_path)
    folder = Folder(tmp_path)
    folder.block("same", "json -> json")
    folder.block("text", "text -> text")
    folder.block("wrap", "text -> {text: text}", '{"text":', "}")
    folder.block("decide", "{route: text, text: text} -> {route: text, text: text}")
    folder.block("infer", scripted(INFER, DONE, signature="json -> text"))
    folder.block("spin", scripted(DONE, init=SPIN))
    folder.block("fail", scripted({"cmd": "fail", "code": "too_dull", "message": "nothing in it"}))
    folder.block("echo", echo())
    return folder


def pipeline(*nodes: str, top: str = "") -> str:
    """A pipeline of nodes, each `NAME = BLOCK` and lines beneath."""
    text = f'name = "x"\n{top}\n'
    for node in nodes:
        head, _, rest = node.partition("\n")
        name, _, block = head.partition(" = ")
        text += f'[nodes.{name}]\nblock = "{block}.wasm"\n{rest}\n'
    return text


def result_of(envelope: Envelope) -> object:
    assert envelope.status is JobStatus.COMPLETED, envelope.error
    return envelope.result


def error_of(envelope: Envelope) -> tuple[str, str]:
    assert envelope.error is not None, envelope.result
    return envelope.error.code, envelope.error.message


# Data from node to node


async def test_a_pipeline_of_one_block_gives_what_the_block_gives(folder: Folder, host: Host) -> None:
    folder.file("p.toml", 'name = "x"\nblock = "wrap.wasm"')
    assert result_of(await host.run("p.toml", "hello")) == {"text": "hello"}


async def test_a_chain_passes_each_output_on(folder: Folder, host: Host) -> None:
    chain = Node(block="text.wasm") >> Node(block="wrap.wasm") >> Node(block="text.wasm", input="wrap.out.text")
    made = Pipeline(name="x", nodes=chain)  # type: ignore[arg-type]  # a chain becomes its nodes
    assert result_of(await host.run(made, "hello")) == "hello"


async def test_an_input_is_put_together_of_outputs_the_jobs_input_and_literals(folder: Folder, host: Host) -> None:
    folder.file(
        "p.toml",
        pipeline(
            'a = wrap\ninput = "job.input.first"',
            'b = text\ninput = "job.input.second"',
            'c = same\n[nodes.c.input]\nwhole = "a.out"\nfield = "a.out.text"\nlist = ["b.out", "job.input", 3, ["b.out"]]\n'
            'literal = { x = [1.5, true, "word", "item"] }',
        ),
    )
    value = {"first": "one", "second": "two"}
    assert result_of(await host.run("p.toml", value)) == {
        "whole": {"text": "one"},
        "field": "one",
        "list": ["two", value, 3, ["two"]],
        "literal": {"x": [1.5, True, "word", "item"]},
    }


async def test_what_is_marked_as_literal_is_given_as_it_stands_whatever_it_looks_like(folder: Folder, host: Host) -> None:
    folder.file(
        "p.toml",
        pipeline(
            "a = wrap",
            "b = same\n[nodes.b.input]\n"
            'text = { literal = "a.out" }\nlost = { literal = "a.output" }\nlist = [{ literal = "a.out.text?" }, "a.out.text"]\n'
            'deep = { literal = { literal = "job.input", list = ["a.out"] } }\nonly = { literal = { literal = 3 } }',
        ),
    )
    assert result_of(await host.run("p.toml", "hello")) == {
        "text": "a.out",
        "lost": "a.output",
        "list": ["a.out.text?", "hello"],
        "deep": {"literal": "job.input", "list": ["a.out"]},
        "only": {"literal": 3},
    }


async def test_a_text_of_a_references_form_may_be_the_whole_input(folder: Folder, host: Host) -> None:
    made = Pipeline(name="x", nodes={"a": Node(block="wrap.wasm", input={"literal": "job.input"})})
    assert result_of(await host.run(made, 1)) == {"text": "job.input"}


async def test_several_sinks_give_a_record_of_them(folder: Folder, host: Host) -> None:
    folder.file("p.toml", pipeline("a = text", 'b = wrap\ninput = "a.out"', 'c = text\ninput = "a.out"'))
    assert result_of(await host.run("p.toml", "x")) == {"b": {"text": "x"}, "c": "x"}


async def test_the_jobs_input_is_checked_before_anything_runs(folder: Folder, host: Host) -> None:
    folder.file("p.toml", pipeline("a = spin\ninput = 1", 'b = wrap\ninput = "job.input.title"'))
    assert error_of(await host.run("p.toml", {"titel": "x"})) == (
        "schema_validation_failed",
        "the input does not fit what the pipeline takes, {title: text}: input.title is missing; it must be text "
        '(did you mean "titel"?)',
    )


async def test_a_job_on_a_pipeline_that_is_wrong_fails_with_every_problem(folder: Folder, host: Host) -> None:
    folder.file("p.toml", pipeline("a = wrap", 'b = text\ninput = "a.out"', 'c = absent\ninput = "b.out"'))
    assert error_of(await host.run("p.toml", "x")) == (
        "schema_validation_failed",
        'p.toml:8: node "b": input must be text, and "a.out" gives {text: text}: write "a.out.text" for the bare value\n'
        'p.toml:10: node "c": there is no block "absent.wasm" (not_found)',
    )
    folder.file("p.toml", "nmae = 1")
    assert error_of(await host.run("p.toml", "x"))[1].startswith("p.toml:1: name is missing\np.toml:1: unknown key")


# Nodes at the same time


class Meeting:
    """A model that answers nobody before so many ask at the same time. It remembers how many did at most."""

    name = "meeting"
    accepts_images = True

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.asking = self.most = self.answered = 0
        self.together = trio.Event()

    async def infer(self, prompt: Prompt, sink: TokenSink, meter: TokenMeter) -> Reply:
        meter.tokens_in += 3
        self.asking += 1
        self.most = max(self.most, self.asking)
        try:
            if self.asking == self.wanted:
                self.together.set()
            await self.together.wait()
            await trio.testing.wait_all_tasks_blocked()
        finally:
            self.asking -= 1
        self.answered += 1
        meter.tokens_out += 2
        return Reply("hm", "stop")

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


@pytest.fixture
def meet(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Meeting]:
    def meet(wanted: int) -> Meeting:
        meeting = Meeting(wanted)

        async def open_backend(model: str, *, local_only: bool) -> Meeting:
            await trio.lowlevel.checkpoint()
            return meeting

        monkeypatch.setattr("cuttlefish.jobs.resources.open_backend", open_backend)
        return meeting

    return meet


async def test_nodes_that_do_not_need_each_other_run_at_the_same_time(
    folder: Folder, host: Host, meet: Callable[[int], Meeting]
) -> None:
    meeting = meet(3)
    folder.file(
        "p.toml",
        pipeline("a = infer", "b = infer", "c = infer", 'd = same\ninput = ["a.out", "b.out", "c.out"]', top='model = "stub:"'),
    )
    with trio.fail_after(60):
        envelope = await host.run("p.toml", None)
    assert result_of(envelope) == ["ok", "ok", "ok"]
    assert meeting.most == 3
    assert (envelope.usage.tokens_in, envelope.usage.tokens_out, envelope.usage.model) == (9, 6, "meeting")


# Branches

BRANCH = pipeline(
    'first = decide\n[nodes.first.branch]\nleft = "l"\nright = "r"\nboth = ["l", "r"]\nnone = []',
    'l = wrap\ninput = "first.out.text"',
    'r = wrap\ninput = "first.out.text"',
    'after-l = same\ninput = { text = "l.out.text" }',
    'end = same\ninput = { left = "after-l.out?", right = "r.out.text?", list = ["l.out?", "r.out?"], always = "first.out.route" }',
)
T = {"text": "t"}


@pytest.mark.parametrize(
    ("route", "result", "skipped"),
    [
        ("left", {"left": T, "list": [T], "always": "left"}, {"r"}),
        ("right", {"right": "t", "list": [T], "always": "right"}, {"l", "after-l"}),
        ("both", {"left": T, "right": "t", "list": [T, T], "always": "both"}, set()),
        ("none", {"list": [], "always": "none"}, {"l", "after-l", "r"}),
    ],
)
async def test_a_label_picks_what_runs_and_what_is_left_out_is_absent_where_it_may_be(
    folder: Folder, host: Host, route: str, result: object, skipped: set[str]
) -> None:
    folder.file("p.toml", BRANCH)
    job = host.start("p.toml", {"route": route, "text": "t"})
    assert result_of(await job.envelope()) == result
    assert {name for name, record in job.nodes.items() if record.status == "skipped"} == skipped
    assert {record.status for record in job.nodes.values()} <= {"skipped", "finished"}


async def test_a_route_that_is_no_label_fails_the_job(folder: Folder, host: Host) -> None:
    folder.file("p.toml", BRANCH)
    assert error_of(await host.run("p.toml", {"route": "rihgt", "text": "t"})) == (
        "schema_validation_failed",
        'node "first": the route "rihgt" is none of its labels; did you mean "right"?',
    )


async def test_what_needs_a_node_that_is_left_out_is_left_out_too(folder: Folder, host: Host) -> None:
    folder.file(
        "p.toml",
        pipeline(
            'first = decide\nbranch = { yes = "a", no = "b" }',
            'a = text\ninput = "first.out.text"',
            'b = text\ninput = "first.out.text"',
            'a2 = text\ninput = "a.out"',
            'a3 = same\ninput = ["a2.out", "first.out"]',
        ),
    )
    assert result_of(await host.run("p.toml", {"route": "no", "text": "t"})) == {"b": "t"}
    assert result_of(await host.run("p.toml", {"route": "yes", "text": "t"})) == {"a3": ["t", {"route": "yes", "text": "t"}]}


async def test_a_job_whose_every_result_is_left_out_fails(folder: Folder, host: Host) -> None:
    folder.file("p.toml", pipeline('first = decide\nbranch = { yes = "a", no = [] }', 'a = text\ninput = "first.out.text"'))
    assert error_of(await host.run("p.toml", {"route": "no", "text": "t"})) == (
        "schema_validation_failed",
        "no node that gives a result ran: every one of them was left out by a branch",
    )


@pytest.mark.parametrize(
    ("routes", "ran"),
    [(("y", "y"), {"inner", "both"}), (("y", "n"), {"inner"}), (("n", "y"), set()), (("n", "n"), set())],
)
async def test_a_node_beneath_two_decisions_keeps_both_conditions(
    folder: Folder, host: Host, routes: tuple[str, str], ran: set[str]
) -> None:
    folder.file(
        "p.toml",
        pipeline(
            'outer = decide\ninput = { route = "job.input.outer", text = "" }\nbranch = { y = ["inner", "both"], n = [] }',
            'inner = decide\ninput = { route = "job.input.inner", text = "" }\nbranch = { y = "both", n = [] }',
            'both = text\ninput = "t"',
            'end = same\ninput = ["both.out?", 1]',
        ),
    )
    job = host.start("p.toml", {"outer": routes[0], "inner": routes[1]})
    assert result_of(await job.envelope()) == (["t", 1] if "both" in ran else [1])
    assert {name for name, record in job.nodes.items() if record.status == "finished"} == {"outer", "end"} | ran


# Rounds

GROWING = choosing("json -> {state: text, log: json}", 60, ('{"state":"more","log":[', "]}"), ('{"state":"done","log":[', "]}"))


async def test_a_node_is_repeated_on_its_own_output_until_that_says_done(folder: Folder, host: Host) -> None:
    folder.block("grow", GROWING)
    folder.file("p.toml", pipeline('a = grow\ninput = { start = "job.input" }\nrepeat = { until = "state", max = 9 }'))
    result = result_of(await host.run("p.toml", "word"))
    rounds = []
    while isinstance(result, dict) and "state" in result:
        rounds.append(result["state"])
        assert isinstance(result["log"], list)
        result = result["log"][0]
    assert rounds == ["done", "more", "more"]
    assert result == {"start": "word"}  # the first round was given the node's real input


async def test_done_may_be_said_as_true_and_one_round_may_be_enough(folder: Folder, host: Host) -> None:
    folder.block("ready", "json -> {ready: bool, was: json}", '{"ready":true,"was":', "}")
    folder.file("p.toml", pipeline('a = ready\nrepeat = { until = "ready", max = 1 }'))
    assert result_of(await host.run("p.toml", 5)) == {"ready": True, "was": 5}


async def test_a_node_that_is_never_done_fails_at_its_bound(folder: Folder, host: Host) -> None:
    folder.block("grow", GROWING)
    folder.file("p.toml", pipeline('a = grow\nrepeat = { until = "state", max = 2 }', "b = same"))
    assert error_of(await host.run("p.toml", "word")) == (
        "limit_exceeded",
        'node "a": repeat.max is 2; after the last round "state" is "more"',
    )


# Items


async def test_a_manifests_lines_are_the_items_in_their_order(folder: Folder, host: Host) -> None:
    folder.file("lists/m.jsonl", '{"text": "one"}\n\n  \n{"text": "two"}\r\n{"text": "three"}')
    folder.file(
        "p.toml", pipeline('a = wrap\nover = "lists/m.jsonl"\ninput = "item.text"\nconcurrency = 2', top='read = ["lists"]')
    )
    assert result_of(await host.run("p.toml", None)) == {
        "results": [{"item": n, "value": {"text": word}} for n, word in enumerate(("one", "two", "three"))],
        "failures": [],
        "succeeded": 3,
        "failed": 0,
    }


async def test_a_manifest_without_items_is_no_error(folder: Folder, host: Host) -> None:
    folder.file("m.jsonl", "\n")
    folder.file("p.toml", pipeline('a = wrap\nover = "m.jsonl"', top='read = ["."]'))
    assert result_of(await host.run("p.toml", None)) == {"results": [], "failures": [], "succeeded": 0, "failed": 0}


async def test_a_line_that_is_no_json_is_told_by_its_number(folder: Folder, host: Host) -> None:
    folder.file("m.jsonl", '"one"\n\n"two\n')
    folder.file("p.toml", pipeline('a = wrap\nover = "m.jsonl"', top='read = ["."]'))
    code, message = error_of(await host.run("p.toml", None))
    assert code == "schema_validation_failed"
    assert message.startswith('line 3 of "m.jsonl" is not valid JSON at column 1: ')


async def test_each_item_is_checked_by_itself_and_fails_by_itself(folder: Folder, host: Host) -> None:
    folder.file("m.jsonl", '"one"\n2\n{"path": "three"}\n"four"\n')
    over = 'a = wrap\nover = "m.jsonl"\non_error = "keep"'
    folder.file("p.toml", pipeline(over, top='read = ["."]'))
    assert result_of(await host.run("p.toml", None)) == {
        "results": [{"item": 0, "value": {"text": "one"}}, {"item": 3, "value": {"text": "four"}}],
        "failures": [
            {
                "item": 1,
                "code": "schema_validation_failed",
                "message": NOT_TEXT.format(2),
            },
            {
                "item": 2,
                "code": "schema_validation_failed",
                "message": 'the input does not fit what "wrap.wasm" takes, text: input must be text, found {"path": "three"}',
            },
        ],
        "succeeded": 2,
        "failed": 2,
    }
    folder.file("p.toml", pipeline(over.replace("keep", "stop"), top='read = ["."]'))
    assert error_of(await host.run("p.toml", None)) == (
        "schema_validation_failed",
        "item 1: " + NOT_TEXT.format(2),
    )


async def test_a_field_that_an_item_lacks_is_that_items_failure(folder: Folder, host: Host) -> None:
    folder.file("m.jsonl", '{"a": "x"}\n{"b": "y"}\n')
    folder.file("p.toml", pipeline('n = wrap\nover = "m.jsonl"\ninput = "item.a"\non_error = "keep"', top='read = ["."]'))
    result = result_of(await host.run("p.toml", None))
    assert isinstance(result, dict)
    assert result["failures"] == [
        {"item": 1, "code": "schema_validation_failed", "message": '"item.a": there is no field "a" in {"b": "y"}'}
    ]


async def test_when_every_item_fails_the_node_fails_with_the_first_reason(folder: Folder, host: Host) -> None:
    folder.file("m.jsonl", "1\n2\n")
    folder.file(
        "p.toml", pipeline('n = fail\nover = "m.jsonl"\non_error = "keep"', 'm = same\ninput = "n.out"', top='read = ["."]')
    )
    assert error_of(await host.run("p.toml", None)) == ("too_dull", 'node "n": all items failed (2); the first: nothing in it')


async def test_a_pattern_gives_the_files_that_match_sorted_and_as_paths_from_the_base_folder(folder: Folder, host: Host) -> None:
    for name in ("in/b.txt", "in/a.txt", "in/deep/er/c.txt", "in/.hidden.txt", "in/.cache/d.txt", "in/x.pdf", "out/e.txt"):
        folder.file(name, "words")
    (folder.path / "in" / "z.txt").mkdir()
    folder.file("p.toml", pipeline('n = same\nover = "in/**/*.txt"', top='read = ["in"]'))
    result = result_of(await host.run("p.toml", None))
    assert isinstance(result, dict)
    assert [one["value"]["path"] for one in result["results"]] == ["in/a.txt", "in/b.txt", "in/deep/er/c.txt"]
    elsewhere = result_of(await host.run("p.toml", None, base_dir=folder.path / "out"))
    assert isinstance(elsewhere, dict)
    assert next(one["value"]["path"] for one in elsewhere["results"]) == str(folder.path / "in" / "a.txt")


async def test_a_pattern_finds_only_what_may_be_read(folder: Folder, host: Host) -> None:
    folder.file("in/a.txt", "words")
    folder.file("secret/b.txt", "words")
    (folder.path / "in" / "out.txt").symlink_to(folder.path / "secret" / "b.txt")
    folder.file("p.toml", pipeline('n = same\nover = "*/*.txt"', top='read = ["in"]'))
    result = result_of(await host.run("p.toml", None))
    assert isinstance(result, dict)
    assert [one["value"]["path"] for one in result["results"]] == ["in/a.txt"]
    folder.file("p.toml", pipeline('n = same\nover = "secret/*.txt"', top='read = ["in"]'))
    assert error_of(await host.run("p.toml", None)) == ("not_found", 'no file that may be read matches "secret/*.txt"')


async def test_a_file_whose_name_is_no_text_fails_by_itself_and_is_not_left_out(folder: Folder, host: Host) -> None:
    folder.file("in/a.txt", "words")
    folder.file(os.fsdecode(b"in/caf\xe9.txt"), "words")
    folder.file("p.toml", pipeline('n = same\nover = "*/*.txt"\non_error = "keep"', top='read = ["in"]'))
    result = result_of(await host.run("p.toml", None))
    assert isinstance(result, dict)
    assert [one["value"]["path"] for one in result["results"]] == ["in/a.txt"]
    assert result["failures"] == [
        {
            "item": 1,
            "code": "schema_validation_failed",
            "message": '"in/caf\\udce9.txt": the input holds what is no Unicode text, near {"path": "in/caf\\udce9.txt"}; '
            "a file of such a name must be renamed",
        }
    ]
    folder.file("p.toml", pipeline('n = same\nover = "*/caf*.txt"', top='read = ["p.toml"]'))
    assert error_of(await host.run("p.toml", None)) == ("not_found", 'no file that may be read matches "*/caf*.txt"')


def test_a_granted_file_that_this_user_may_not_read_is_an_item_and_is_not_left_out(folder: Folder) -> None:
    def beneath(root: int, components: list[bytes]) -> int:
        if components[-1] == b"b.txt":
            raise OSError(errno.EACCES, "as the system says to all but root")
        return open_by_walking(root, components)

    for name in ("in/a.txt", "in/b.txt"):
        folder.file(name, "words")
    with Capabilities.grant(["in"], folder.path, open_beneath=beneath) as capabilities:
        items = paths_of_pattern("in/*.txt", folder.path, folder.path, capabilities, Limits())
    assert items == [{"path": "in/a.txt"}, {"path": "in/b.txt"}]


async def test_a_manifest_outside_the_grant_is_denied(folder: Folder, host: Host) -> None:
    folder.file("in/a.txt", "")
    folder.file("m.jsonl", "1")
    folder.file("p.toml", pipeline('n = same\nover = "m.jsonl"', top='read = ["in"]'))
    path, root = folder.path / "m.jsonl", folder.path / "in"
    assert error_of(await host.run("p.toml", None)) == (
        "capability_denied",
        f'open "{path}": "{path}" lies outside everything that this job may read. Granted: "{root}". '
        "If the block should read it, grant its folder with --read",
    )


@pytest.mark.parametrize(("concurrency", "most"), [(1, 1), (3, 3), (50, 7)])
async def test_as_many_items_run_at_once_as_asked_and_never_more(
    folder: Folder, host: Host, meet: Callable[[int], Meeting], concurrency: int, most: int
) -> None:
    meeting = meet(most)
    folder.file("m.jsonl", "1\n" * 7)
    folder.file(
        "p.toml", pipeline(f'n = infer\nover = "m.jsonl"\nconcurrency = {concurrency}', top='read = ["."]\nmodel = "stub:"')
    )
    with trio.fail_after(60):
        assert isinstance(result := result_of(await host.run("p.toml", None)), dict)
    assert result["succeeded"] == 7
    assert meeting.answered == 7
    assert meeting.most == most


class Failing(Meeting):
    """A model that fails for the first times that it is asked."""

    def __init__(self, failures: int) -> None:
        super().__init__(1)
        self.failures = failures
        self.asked = 0

    async def infer(self, prompt: Prompt, sink: TokenSink, meter: TokenMeter) -> Reply:
        from cuttlefish.errors import InferenceFailed

        await trio.lowlevel.checkpoint()
        self.asked += 1
        meter.tokens_in += 3
        if self.asked <= self.failures:
            raise InferenceFailed(f"no {self.asked}")
        return Reply("hm", "stop")


@pytest.mark.parametrize(("failures", "asked", "failed"), [(0, 2, 0), (2, 4, 0), (3, 4, 1), (6, 6, 2)])
async def test_an_item_is_tried_again_as_often_as_it_may_and_every_attempt_is_paid_for(
    folder: Folder, host: Host, monkeypatch: pytest.MonkeyPatch, failures: int, asked: int, failed: int
) -> None:
    model = Failing(failures)

    async def open_backend(name: str, *, local_only: bool) -> Failing:
        await trio.lowlevel.checkpoint()
        return model

    monkeypatch.setattr("cuttlefish.jobs.resources.open_backend", open_backend)
    folder.file("m.jsonl", "1\n2\n")
    top = 'read = ["."]\nmodel = "stub:"'
    folder.file("p.toml", pipeline('n = infer\nover = "m.jsonl"\nretry = 2\non_error = "keep"', top=top))
    envelope = await host.run("p.toml", None)
    assert model.asked == asked
    assert envelope.usage.tokens_in == 3 * asked
    if failed == 2:
        assert error_of(envelope) == ("inference_failed", "all items failed (2); the first: no 3")
    else:
        assert isinstance(result := result_of(envelope), dict)
        assert (result["failed"], result["succeeded"]) == (failed, 2 - failed)


# What goes wrong, and what is told


async def test_an_error_names_its_node_and_keeps_its_code(folder: Folder, host: Host) -> None:
    folder.file("p.toml", pipeline("a = same", 'b = fail\ninput = "a.out"', "c = spin"))
    job = host.start("p.toml", 1)
    assert error_of(await job.envelope()) == ("too_dull", 'node "b": nothing in it')
    assert {name: record.status for name, record in job.nodes.items()} == {"a": "finished", "b": "failed", "c": "stopped"}


async def test_a_node_that_takes_longer_than_it_may_is_stopped_and_named(folder: Folder, host: Host) -> None:
    folder.file("p.toml", pipeline("a = same", "b = spin\ntimeout = 0.2"))
    assert error_of(await host.run("p.toml", 1)) == (
        "timeout",
        'node "b": "spin.wasm" took longer than the node\'s timeout, 0.2 seconds',
    )


async def test_a_timeout_is_for_each_item_by_itself(folder: Folder, host: Host) -> None:
    folder.block("pick", scripted(DONE, init="(if (i32.eq (local.get 1) (i32.const 3)) (then (loop $l (br $l))))"))
    folder.file("m.jsonl", "1\n333\n2\n")
    folder.file("p.toml", pipeline('n = pick\nover = "m.jsonl"\ntimeout = 0.3\non_error = "keep"', top='read = ["."]'))
    assert isinstance(result := result_of(await host.run("p.toml", None)), dict)
    assert result["failures"] == [
        {"item": 1, "code": "timeout", "message": '"pick.wasm" took longer than the node\'s timeout, 0.3 seconds'}
    ]
    assert result["succeeded"] == 2


async def test_a_pipelines_timeout_ends_its_job_and_its_limits_hold(folder: Folder, host: Host) -> None:
    folder.file("p.toml", pipeline("a = spin", top="timeout = 0.3"))
    assert error_of(await host.run("p.toml", 1)) == ("timeout", "the job took longer than it may (job.time is 0.3 seconds)")
    folder.file("p.toml", pipeline("a = spin", top='limits = { "guest.step_time" = 0.2 }'))
    assert error_of(await host.run("p.toml", 1)) == (
        "timeout",
        '"spin.wasm" computed for longer than one step may (guest.step_time is 0.2 seconds)',
    )
    longer = await host.run("p.toml", 1, limits={"guest.step_time": 0.3})
    assert error_of(longer)[1] == '"spin.wasm" computed for longer than one step may (guest.step_time is 0.3 seconds)'


async def test_updates_tell_which_node_begins_and_ends_and_how_far_items_are(folder: Folder, host: Host) -> None:
    folder.file("m.jsonl", '"x"\n5\n')
    folder.file(
        "p.toml",
        pipeline(
            'first = decide\nbranch = { yes = "a", no = "b" }',
            'a = wrap\nover = "m.jsonl"\non_error = "keep"',
            'b = text\ninput = "first.out.text"',
            top='read = ["."]',
        ),
    )
    job = host.start("p.toml", {"route": "yes", "text": "t"})
    updates = [update async for update in job]
    assert isinstance(updates[-1], Finished)
    assert [update.value for update in updates[:-1] if isinstance(update, Progress)] == [
        {"node": "first", "of": 3, "stage": "started"},
        {"node": "first", "of": 3, "stage": "finished"},
        *sorted(
            [{"node": "b", "of": 3, "stage": "skipped"}, {"node": "a", "of": 3, "stage": "started"}],
            key=lambda told: [u.value for u in updates if isinstance(u, Progress)].index(told),
        ),
        {"node": "a", "item": 0, "items": 2, "succeeded": 1, "failed": 0},
        {"node": "a", "item": 1, "items": 2, "succeeded": 1, "failed": 1}
        | {"code": "schema_validation_failed", "message": NOT_TEXT.format(5)},
        {"node": "a", "of": 3, "stage": "finished"},
    ]


async def test_what_a_block_tells_says_which_run_of_it_that_was(folder: Folder, host: Host) -> None:
    folder.block("tell", scripted({"cmd": "emit", "progress": "reading"}, INFER, DONE, signature="json -> text"))
    folder.file("m.jsonl", "1\n2\n")
    folder.file("p.toml", pipeline('a = tell\nover = "m.jsonl"', "b = tell", top='read = ["."]\nmodel = "stub:word"'))
    job = host.start("p.toml", None)
    told = [update async for update in job if isinstance(update, TokenPiece | Progress) and update.origin]
    for origin in (Origin("a", 0), Origin("a", 1), Origin("b")):
        assert [one for one in told if one.origin == origin] == [Progress("reading", origin), TokenPiece("word", origin)]
    assert len(told) == 6
    alone = host.start("tell.wasm", None, model="stub:word")
    assert [update async for update in alone][:-1] == [Progress("reading"), TokenPiece("word")]


async def test_usage_sums_over_nodes_and_models_and_each_nodes_part_is_kept(folder: Folder, host: Host) -> None:
    folder.block("ask", scripted({"cmd": "infer", "prompt": "one two", "max_tokens": 9}, INFER, DONE))
    folder.file("p.toml", pipeline('a = infer\nmodel = "stub:x y"', "b = ask", "c = same", top='model = "stub:z"'))
    job = host.start("p.toml", 1)
    usage = (await job.envelope()).usage
    assert (usage.tokens_in, usage.tokens_out, usage.model) == (3 + 2 + 3, 2 + 1 + 1, "stub")
    assert {name: record.tokens for name, record in job.nodes.items()} == {"a": (3, 2), "b": (5, 2), "c": (0, 0)}
    assert all(record.status == "finished" and record.duration_s > 0 for record in job.nodes.values())


async def test_the_callers_model_wins_over_the_pipelines_and_a_nodes_own_over_both(folder: Folder, host: Host) -> None:
    folder.file("p.toml", pipeline('a = infer\nmodel = "stub:x y"', "b = infer", top='model = "stub:z"'))
    job = host.start("p.toml", 1, model="stub:one two three four")
    await job.envelope()
    assert {name: record.tokens[1] for name, record in job.nodes.items()} == {"a": 2, "b": 4}


async def test_a_local_pipeline_never_asks_a_model_elsewhere(folder: Folder, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, bool]] = []

    async def open_backend(model: str, *, local_only: bool) -> Meeting:
        await trio.lowlevel.checkpoint()
        asked.append((model, local_only))
        return Meeting(1)

    monkeypatch.setattr("cuttlefish.jobs.resources.open_backend", open_backend)
    model = "openai:https://example.org/v1#m"
    for policy in ("", 'data_policy = "any"'):
        folder.file("p.toml", pipeline("a = infer", top=f'model = "{model}"\n{policy}'))
        assert result_of(await host.run("p.toml", None)) == "ok"
    assert asked == [(model, True), (model, False)]


# Paths

OPEN = [{"cmd": "open", "path": "docs/a.txt"}, {"cmd": "slice", "handle": 0, "offset": 0, "len": 9}]


async def test_paths_in_a_jobs_input_start_at_the_pipelines_folder_unless_a_base_is_given(folder: Folder, host: Host) -> None:
    for place in ("here", "there"):
        folder.file(f"{place}/docs/a.txt", place)
    folder.block("here/echo", echo())
    folder.file("here/p.toml", pipeline("a = echo", top='read = ["docs", "../there"]'))
    for base_dir, words in ((None, "here"), ("there", "there"), (folder.path / "there", "there")):
        result = result_of(await host.run("here/p.toml", OPEN, base_dir=base_dir))
        assert isinstance(result, list)
        assert result[1]["text"] == words


async def test_a_denied_path_says_what_it_resolved_to_and_what_is_granted(folder: Folder, host: Host) -> None:
    folder.file("here/docs/a.txt", "x")
    folder.file("more/b.txt", "x")
    folder.block("here/echo", echo())
    folder.file("here/p.toml", pipeline("a = echo", top='read = ["docs"]'))
    code, message = error_of(await host.run("here/p.toml", [{"cmd": "open", "path": "../more/b.txt"}], read=["docs"]))
    assert code == "capability_denied"
    assert message == (
        f'open "../more/b.txt": "{folder.path}/more/b.txt" lies outside everything that this job may read. '
        f'Granted: "{folder.path}/here/docs", "docs". If the block should read it, grant its folder with --read'
    )


async def test_what_the_caller_grants_is_added_to_what_the_pipeline_grants(folder: Folder, host: Host) -> None:
    folder.file("docs/a.txt", "one")
    folder.file("more/b.txt", "two")
    folder.file("p.toml", pipeline("a = echo", top='read = ["docs"]'))
    commands = [{"cmd": "open", "path": "docs/a.txt"}, {"cmd": "open", "path": "more/b.txt"}]
    assert error_of(await host.run("p.toml", commands))[0] == "capability_denied"
    assert result_of(await host.run("p.toml", commands, read=["more"]))


async def test_a_pipeline_in_python_has_its_paths_from_the_base_folder(folder: Folder, host: Host) -> None:
    folder.file("sub/docs/a.txt", "words")
    folder.block("sub/echo", echo())
    made = Pipeline(name="x", block="echo.wasm", read=["docs"])
    assert result_of(await host.run(made, OPEN, base_dir="sub"))
    assert (await host.check(made, base_dir="sub")).nodes[0].name == "x"


# Handles


async def test_a_node_may_use_what_another_node_opened(folder: Folder, host: Host) -> None:
    """The first node opens two files and gives, as its output, the commands that the echo block then gives."""
    folder.file("docs/a.txt", "first")
    folder.file("docs/b.txt", "second")
    reading = [{"cmd": "slice", "handle": 4096 + n, "offset": 0, "len": 9} for n in range(2)]
    opening = [{"cmd": "open", "path": f"docs/{name}.txt"} for name in "ab"]
    folder.block("open", scripted(*opening, {"cmd": "done", "result": [*reading, {"cmd": "open", "path": "docs/a.txt"}]}))
    folder.file("p.toml", pipeline("zero = same", "first = open", 'second = echo\ninput = "first.out"', top='read = ["docs"]'))
    result = result_of(await host.run("p.toml", 1))
    assert isinstance(result, dict)
    events = result["second"]
    assert [event.get("text") for event in events] == ["first", "second", None]
    assert events[2]["handle"] == 2 * 4096  # its own, by its place in the graph


async def test_a_document_that_one_node_opened_is_read_by_another_and_by_items(folder: Folder, host: Host) -> None:
    folder.file("docs/a.pdf", (Path(__file__).parent.parent / "examples" / "night-sky-survey.pdf").read_bytes())
    folder.file("m.jsonl", "0\n1\n")
    opening = {"cmd": "open", "path": "docs/a.pdf"}
    folder.block("open", scripted(opening, {"cmd": "done", "result": {"doc": 0}}, signature="json -> {doc: document}"))
    reading = {"cmd": "page_text", "handle": 0, "page": 1}
    folder.block("read", scripted(reading, DONE, signature="{doc: document} -> text"))
    folder.file(
        "p.toml",
        pipeline(
            "a = open",
            'b = read\ninput = { doc = "a.out.doc" }',
            'c = read\nover = "m.jsonl"\nconcurrency = 2\ninput = { doc = "a.out.doc", page = "item" }',
            top='read = ["."]',
        ),
    )
    result = result_of(await host.run("p.toml", 1))
    assert isinstance(result, dict)
    assert result["b"] == "ok"
    assert result["c"]["succeeded"] == 2


async def test_a_number_that_names_nothing_in_the_job_is_refused_at_the_seam(folder: Folder, host: Host) -> None:
    folder.block("claim", scripted({"cmd": "done", "result": {"doc": 7}}, signature="json -> {doc: document}"))
    folder.file("p.toml", pipeline("a = claim"))
    assert error_of(await host.run("p.toml", 1)) == (
        "schema_validation_failed",
        '"claim.wasm" gave a result that does not fit its own signature, {doc: document}: '
        "result.doc must be a handle of a document, found 7",
    )


async def test_a_job_is_given_no_handles(folder: Folder, host: Host) -> None:
    folder.block("show", "{doc: document} -> json")
    folder.file("p.toml", pipeline("a = show"))
    assert error_of(await host.run("p.toml", {"doc": 0})) == (
        "schema_validation_failed",
        "the input does not fit what the pipeline takes, {doc: document}: input.doc must be a handle of a document, found 0",
    )


async def test_the_handle_limit_counts_all_nodes_of_a_job_and_gets_back_what_items_close(folder: Folder, host: Host) -> None:
    folder.file("a.txt", "x")
    folder.file("m.jsonl", "1\n" * 9)
    folder.block("open", scripted({"cmd": "open", "path": "a.txt"}, {"cmd": "open", "path": "a.txt"}, DONE))
    top = 'read = ["."]\nlimits = { "job.handles" = 3 }'
    folder.file("p.toml", pipeline("a = open", 'b = open\ninput = "a.out"', top=top))
    assert error_of(await host.run("p.toml", 1)) == (
        "limit_exceeded",
        'node "b": job.handles is 3; open "a.txt" would be one more',
    )
    folder.file("p.toml", pipeline('a = open\nover = "m.jsonl"', top=top))
    assert isinstance(result := result_of(await host.run("p.toml", 1)), dict)
    assert result["succeeded"] == 9


async def test_every_item_sees_the_same_numbers_whatever_runs_beside_it(folder: Folder, host: Host) -> None:
    folder.file("a.txt", "x")
    line = '[{"cmd": "open", "path": "a.txt"}, {"cmd": "open", "path": "a.txt"}]\n'
    folder.file("m.jsonl", line * 20)
    folder.file("p.toml", pipeline("z = same", 'a = echo\nover = "m.jsonl"\nconcurrency = 7', top='read = ["."]'))
    result = result_of(await host.run("p.toml", 1))
    assert isinstance(result, dict)
    assert {tuple(event["handle"] for event in one["value"]) for one in result["a"]["results"]} == {(4096, 4097)}


async def test_a_round_may_use_what_the_round_before_opened(folder: Folder, host: Host) -> None:
    """Each round opens a file and passes its handle on; the numbers go on too."""
    folder.file("a.txt", "x")
    opened = {"cmd": "open", "path": "a.txt"}
    use = [{"cmd": "slice", "handle": 0, "offset": 0, "len": 1}]
    folder.block("round", scripted(opened, *use, {"cmd": "done", "result": {"state": "more"}}, signature="json -> {state: text}"))
    folder.file("p.toml", pipeline('a = round\nrepeat = { until = "state", max = 3 }', top='read = ["."]'))
    assert error_of(await host.run("p.toml", 1))[0] == "limit_exceeded"  # the bound: each round could use handle 0


# Endings


def descriptors() -> set[str]:
    return {path.name for path in Path("/dev/fd").resolve().iterdir()}


def children() -> list[str]:
    return [pid for task in Path("/proc/self/task").glob("*/children") for pid in task.read_text().split()]


async def wait_for(condition: Callable[[], bool]) -> None:
    with trio.fail_after(60):
        while not condition():
            await trio.lowlevel.checkpoint()


def endless_folder(path: str) -> Iterator[os.DirEntry[str]]:
    while True:
        with os.scandir(path) as entries:
            yield from [entry for entry in entries if entry.is_file()]


STAGES: dict[str, tuple[list[str], str]] = {
    "while nodes run": (["a = spin", "b = open", "c = spin"], "a"),
    "while a model answers": (["a = infer", "b = infer"], "a"),
    "in a later node": (["a = open", 'b = spin\ninput = "a.out"'], "b"),
    "in a round": (['a = grow\nrepeat = { until = "state", max = 1000000 }', "b = spin"], "a"),
    "among items": (["a = open", 'b = spin\nover = "m.jsonl"\nconcurrency = 3\non_error = "keep"\nretry = 5'], "b"),
    "while a pattern is looked for": (['a = same\nover = "**/*.absent"'], "a"),
}


@pytest.mark.parametrize(("nodes", "running"), STAGES.values(), ids=STAGES.keys())
def test_a_pipeline_that_is_cancelled_leaves_nothing_behind(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, nodes: list[str], running: str
) -> None:
    folder.file("a.txt", "x")
    folder.file("m.jsonl", "1\n" * 9)
    folder.block("open", scripted({"cmd": "open", "path": "a.txt"}, DONE))
    folder.block("grow", choosing("json -> {state: text}", 0, ("", ""), ('{"state":"more","was":', "}")))
    monkeypatch.setattr("cuttlefish.pipeline.items._entries", endless_folder)  # one that would be walked for ever
    folder.file("p.toml", pipeline(*nodes, top='read = ["."]\nmodel = "stub:"'))

    async def open_backend(model: str, *, local_only: bool) -> Meeting:
        await trio.lowlevel.checkpoint()
        return Meeting(99)

    monkeypatch.setattr("cuttlefish.jobs.resources.open_backend", open_backend)

    async def cancel_once() -> None:
        async with open_host() as host:
            job = host.start("p.toml", 1)
            await wait_for(lambda: running in job.nodes and job.nodes[running].status == "running")
            job.cancel()
            assert error_of(await job.envelope()) == ("cancelled", "the job was cancelled")
            assert "running" not in {record.status for record in job.nodes.values()}
            assert (await host.run(Pipeline(name="x", block="same.wasm"), 5)).result == 5  # the host goes on

    trio.run(cancel_once)  # once before counting: trio keeps idle threads for a while, and imports open files
    before = descriptors(), children()
    trio.run(cancel_once)
    assert (descriptors(), children()) == before


def test_ten_thousand_items_need_no_more_than_a_few_descriptors(folder: Folder) -> None:
    folder.file("a.txt", "x")
    folder.file("m.jsonl", "1\n" * 10_000)
    folder.block("open", scripted({"cmd": "open", "path": "a.txt"}, DONE))
    folder.file("p.toml", pipeline('a = open\nover = "m.jsonl"\nconcurrency = 4', top='read = ["."]'))
    program = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import cuttlefish
envelope = cuttlefish.run("p.toml", None)
result = envelope.result
in_order = [one["item"] for one in result["results"]] == list(range(10_000))
print(envelope.error, result["succeeded"], result["failed"], in_order)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=folder.path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("None 10000 0 True\n", "")
