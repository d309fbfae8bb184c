"""Python functions as skills: typed arguments, shared state, progress, jobs of their own; and tasks of a host."""

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from jsonschema import Draft202012Validator
from pipelines import Folder

from cuttlefish import Finished, Host, JobStatus, Progress, open_host
from cuttlefish.errors import CuttlefishError
from cuttlefish.jobs.execution import Costs
from cuttlefish.jobs.job import Job
from cuttlefish.mcp.checking import check_arguments
from cuttlefish.mcp.loading import open_skills
from cuttlefish.mcp.probes import probe_skill
from cuttlefish.mcp.skill import Example, Ready, Skill, Unavailable
from cuttlefish.pipeline.spec import PipelineError

HEAD = """
from __future__ import annotations
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal
import trio
from pydantic import BaseModel, Field
from cuttlefish.errors import CuttlefishError
from cuttlefish.mcp.python_skills import Context, shared, skill
from cuttlefish.mcp.skill import Annotations, Example, Family, Ready, Unavailable
from cuttlefish.pipeline.rules import Range
"""

STORE = """
@dataclass
class Store:
    names: list[str]

class Opened(list): ...

@shared
async def store() -> AsyncIterator[Store]:
    made = Store(["a"])
    yield made
    Path("closed.txt").write_text(" ".join(made.names))

@shared
def opened() -> Opened:
    return Opened()

@skill(description="Add a name.", rules=[Range(field="times", min=1, max=3)], examples=[Example("One", {"name": "b"})])
async def add(
    name: Annotated[str, Field(description="A name", pattern="^[a-z]+$")], store: Store, opened: Opened, times: int = 1
) -> list[str]:
    store.names += [name] * times
    opened.append(name)
    return store.names + opened
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.chdir(tmp_path)
    return Folder(tmp_path)


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    async with open_host() as host:
        yield host


async def outcome(skill: Skill, **arguments: Any) -> object:
    checked = check_arguments(skill, arguments)
    assert checked.violations == []
    envelope = await skill.start(checked.values).envelope()
    return envelope.result if envelope.error is None else (envelope.error.code, envelope.error.message)


def messages(skill: Skill, **arguments: Any) -> list[str]:
    return [violation.message for violation in check_arguments(skill, arguments).violations]


async def refused(host: Host, *sources: str) -> list[str]:
    with pytest.raises(PipelineError) as caught:
        async with open_skills(host, [Path(source) for source in sources]):
            raise AssertionError("not refused")
    return list(map(str, caught.value.problems))


async def test_a_function_is_a_skill_with_its_types_rules_and_shared_state(folder: Folder, host: Host) -> None:
    folder.file("own.py", HEAD + STORE)
    async with open_skills(host, [Path("own.py")]) as skills:
        skill = skills.skills["add"]
        assert skill.input_schema == {
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": "A name", "pattern": "^[a-z]+$"},
                "times": {"type": "integer", "default": 1},
            },
            "required": ["name"],
            "additionalProperties": False,
        }
        assert (skill.description, skill.examples) == ("Add a name.", (Example("One", {"name": "b"}),))
        assert (skill.annotations.read_only, skill.annotations.destructive, skill.annotations.open_world) == (False, True, True)
        assert {one.rule for one in check_arguments(skill, {"name": "B", "store": {}}).violations} == {"pattern", "unknown"}
        assert [one.message for one in check_arguments(skill, {"name": "b", "times": 4}).violations] == [
            "times must be from 1 to 3, found 4"
        ]
        assert await outcome(skill, name="b", times=2) == ["a", "b", "b", "b"]
        assert await outcome(skill, name="c") == ["a", "b", "b", "c", "b", "c"]
        assert not Path("closed.txt").exists()
    assert Path("closed.txt").read_text() == "a b b c"


RESULTS = """
class Point(BaseModel):
    x: int
    kind: Literal["a", "b"] = "a"

@skill(description="d")
async def shift(point: Point, by: list[int]) -> Point:
    return Point(x=point.x + sum(by), kind=point.kind)

@skill()
async def lie(value: str) -> int:
    '''Say what is not so.

    More of it.
    '''
    return value

@skill(description="d")
async def fail(code: str) -> None:
    raise CuttlefishError("no such account", code=code)

@skill(description="d")
async def big() -> int:
    return 2**70
"""


async def test_arguments_and_results_are_what_the_annotations_say(
    folder: Folder, host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    folder.file("own.py", HEAD + RESULTS)
    async with open_skills(host, [Path("own.py")]) as skills:
        shift, lie = skills.skills["shift"], skills.skills["lie"]
        assert await outcome(shift, point={"x": 1}, by=[2, 3]) == {"x": 6, "kind": "a"}
        assert [one.field for one in check_arguments(shift, {"point": {"x": 1.5, "kind": "c"}, "by": [1, "2"]}).violations] == [
            "point.x",
            "point.kind",
            "by[1]",
        ]
        assert lie.description == "Say what is not so."
        with caplog.at_level(logging.ERROR):
            code, message = await outcome(lie, value="x")  # type: ignore[misc]  # a pair, where it failed
        assert code == "internal"
        assert message.startswith('"lie" broke, which is a fault in its code; the log says more under ')
        assert message.rpartition(" ")[2] in caplog.text
        assert await outcome(skills.skills["fail"], code="no_such_account") == ("no_such_account", "no such account")
        assert await outcome(skills.skills["big"]) == 2**70
        for name, arguments in (("shift", {"point": {"x": 1}, "by": []}), ("big", {}), ("fail", {"code": "x"})):
            skill = skills.skills[name]
            envelope = (await skill.start(check_arguments(skill, arguments).values).envelope()).model_dump(mode="json")
            Draft202012Validator(skill.output_schema).validate(envelope)
        wide = {"status": "completed", "result": str(2**70), "usage": envelope["usage"]}
        Draft202012Validator(skills.skills["big"].output_schema).validate(wide)


VALIDATED = """
import datetime
from pydantic import AfterValidator, field_validator, model_validator

SEEN = []

def even(n: int) -> int:
    SEEN.append(n)
    if n == 13:
        raise KeyError(n)
    if n % 2:
        raise ValueError("an even number is needed")
    return n // 2

class Span(BaseModel):
    first: datetime.date
    last: datetime.date

    @model_validator(mode="after")
    def ordered(self):
        assert self.first <= self.last, "last is before first"
        return self

@skill(description="d", rules=[Range(field="n", max=100)])
async def half(
    n: Annotated[int, AfterValidator(even)] = 0,
    spans: list[Span] = [],
    either: Annotated[int, AfterValidator(even)] | datetime.date | None = None,
    renamed: Annotated[int | None, Field(alias="from")] = None,
) -> list[int]:
    return [n, *[(span.last - span.first).days for span in spans], SEEN.count(2 * n), renamed or 0]
"""


async def test_what_only_a_type_of_python_can_refuse_is_told_before_a_job_starts_and_is_read_once(
    folder: Folder, host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    folder.file("own.py", HEAD + VALIDATED)
    async with open_skills(host, [Path("own.py")]) as skills:
        skill = skills.skills["half"]
        assert await outcome(skill, n=8, spans=[{"first": "2026-01-01", "last": "2026-01-31"}], **{"from": 3}) == [4, 30, 1, 3]
        assert [one.as_json() for one in check_arguments(skill, {"n": 7}).violations] == [
            {"field": "n", "rule": "validator", "message": "n: an even number is needed", "expected": None, "got": 7}
        ]
        assert messages(skill, n=200) == ["n must be at most 100, found 200"]
        spans = [{"first": "2026-01-01", "last": "soon"}, {"first": "2026-01-02", "last": "2026-01-01"}]
        wrong = check_arguments(skill, {"spans": spans, "either": 3}).violations
        assert [(one.field, one.rule) for one in wrong] == [
            ("spans[0].last", "type"),
            ("spans[1]", "validator"),
            ("either", "validator"),
            ("either", "type"),
        ]
        date = "must be a valid date in the format YYYY-MM-DD, input is too short"
        assert [one.message for one in wrong] == [
            f'spans[0].last {date}, found "soon"',
            "spans[1]: last is before first",
            "either: an even number is needed",
            "either must be a valid date, found 3",
        ]
        with pytest.raises(CuttlefishError) as caught, caplog.at_level(logging.ERROR):
            check_arguments(skill, {"n": 13})
        assert caught.value.code == "internal"
        assert caught.value.message.startswith('"half" broke on its arguments, which is a fault in its code; the log says more')
        assert caught.value.message.rpartition(" ")[2] in caplog.text


async def test_an_example_that_does_not_fit_its_skill_is_refused_at_start(folder: Folder, host: Host) -> None:
    folder.file(
        "own.py",
        HEAD
        + VALIDATED.replace(
            "@skill(",
            "@skill(examples=[Example('Well', {'n': 2}), Example('Odd', {'n': 3}), Example('Much', {'n': 200, 'm': 1}),"
            " Example('Breaks', {'n': 13})], ",
        ),
    )
    first, second, third = await refused(host, "own.py")
    assert first == 'own.py:36: skill "half": its example "Odd" is wrong: n: an even number is needed'
    assert second == 'own.py:36: skill "half": its example "Much" is wrong: there is no argument m; known: n, spans, either, from'
    assert third.startswith('own.py:36: skill "half": its example "Breaks" cannot be checked: "half" broke on its arguments, ')


async def test_a_skill_that_ends_the_process_ends_its_job_alone(folder: Folder, host: Host) -> None:
    folder.file("own.py", HEAD + "import sys\n@skill(description='d')\nasync def leaves(n: int) -> int:\n    sys.exit(n)\n")
    folder.file("script.py", "import sys\nsys.exit(3)\n")
    async with open_skills(host, [Path("own.py")]) as skills:
        code, message = await outcome(skills.skills["leaves"], n=0)  # type: ignore[misc]  # a pair, where it failed
    assert (code, message.startswith('"leaves" broke, which is a fault in its code')) == ("internal", True)
    assert await refused(host, "script.py") == ["script.py:2: cannot be loaded: SystemExit: 3"]


async def test_a_parameter_may_be_called_whatever_python_allows(folder: Folder, host: Host) -> None:
    folder.file(
        "own.py", HEAD + "@skill(description='d')\nasync def s(json: str, _x: int, model_config: int = 3) -> list[object]:\n"
    )
    with (folder.path / "own.py").open("a") as file:
        file.write("    return [json, _x, model_config]\n")
    async with open_skills(host, [Path("own.py")]) as skills:
        skill = skills.skills["s"]
        assert skill.input_schema["required"] == ["json", "_x"]
        assert await outcome(skill, json="j", _x=1) == ["j", 1, 3]


RUNS = """
@skill(description="d")
async def sum_up(path: str, context: Context) -> dict[str, str]:
    context.progress("reading", done=1, total=2)
    done = await context.run("summarize", {"path": path})
    if done.error is not None:
        raise CuttlefishError(done.error.message, code=done.error.code)
    return {"summary": done.result["summary"], "job": context.job_id}

@skill(description="d")
async def wait(context: Context) -> None:
    context.progress("waiting")
    await trio.sleep_forever()
"""


async def test_a_skill_has_progress_and_runs_blocks_under_the_operators_grants(folder: Folder, host: Host) -> None:
    folder.file("own.py", HEAD + RUNS)
    folder.file("letters/a.txt", "Dear all, the dog is well.")
    folder.file("b.txt", "secret")
    async with open_skills(host, [Path("own.py")], model="stub:All is well.", read=["letters"]) as skills:
        job = skills.skills["sum_up"].start({"path": "letters/a.txt"})
        updates = [update async for update in job]
        assert updates[0] == Progress({"message": "reading", "done": 1, "total": 2})
        assert isinstance(updates[-1], Finished)
        envelope = await job.envelope()
        assert envelope.result == {"summary": "All is well.", "job": job.id}
        assert (envelope.usage.tokens_out, envelope.usage.model) == (3, "stub")
        code, _ = await outcome(skills.skills["sum_up"], path="b.txt")  # type: ignore[misc]
        assert code == "capability_denied"


async def test_skills_do_not_take_the_turns_of_jobs_that_they_wait_for(folder: Folder) -> None:
    """With turns of their own they would wait for each other for ever."""
    folder.file("own.py", HEAD + RUNS)
    folder.file("a.txt", "Dear all, the dog is well.")
    async with open_host(max_jobs=1) as host, open_skills(host, [Path("own.py")], model="stub:x", read=["."]) as skills:
        jobs = [skills.skills["sum_up"].start({"path": "a.txt"}) for _ in range(5)]
        with trio.fail_after(60):
            assert [(await job.envelope()).status for job in jobs] == [JobStatus.COMPLETED] * 5


async def test_a_skill_is_cancelled_like_any_job(folder: Folder, host: Host) -> None:
    folder.file("own.py", HEAD + RUNS)
    async with open_skills(host, [Path("own.py")]) as skills:
        job = skills.skills["wait"].start({})
        async for update in job:
            if isinstance(update, Progress):
                job.cancel()
        envelope = await job.envelope()
    assert envelope.status is JobStatus.CANCELLED
    assert envelope.error is not None
    assert envelope.error.code == "cancelled"


PROBES = """
async def away():
    return Unavailable("the disk is away", "Plug it in")

async def here():
    return Ready()

FAMILY = Family("disks", "What is on the disks.", here)

@skill(description="d", family=FAMILY, probe=away, annotations=Annotations(read_only=True, destructive=False))
async def look() -> int:
    return 1

@skill(description="d", family=FAMILY, name="look-again")
async def other() -> int:
    return 2
"""


async def test_a_skill_has_a_probe_a_family_and_hints_of_its_own(folder: Folder, host: Host) -> None:
    folder.file("own.py", HEAD + PROBES)
    async with open_skills(host, [Path("own.py")]) as skills:
        assert list(skills.skills) == ["look", "look-again"]
        assert list(skills.families) == ["disks"]
        assert await probe_skill(skills.skills["look"]) == Unavailable("the disk is away", "Plug it in")
        assert await probe_skill(skills.skills["look-again"]) == Ready()
        assert skills.skills["look"].annotations.read_only


async def test_a_probe_that_breaks_makes_its_own_skill_unavailable(
    folder: Folder, host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    breaks = "async def away():\n    raise KeyError('disk')\n"
    nothing = "async def here():\n    return None\n"
    probes = PROBES.replace("async def away():", breaks + "async def gone():").replace(
        "async def here():", nothing + "async def ok():"
    )
    folder.file("own.py", HEAD + probes)
    async with open_skills(host, [Path("own.py")]) as skills:
        with caplog.at_level(logging.ERROR):
            found = await probe_skill(skills.skills["look"])
        assert isinstance(found, Unavailable)
        assert found.reason == 'the probe of family "disks" broke, which is a fault in its code'
        assert (found.hint or "").removeprefix("The log says more under ") in caplog.text


async def test_what_is_given_for_a_part_of_a_skill_and_is_none_is_told(folder: Folder, host: Host) -> None:
    parts = "rules=[3], examples=[{'n': 1}], family='disks', annotations=1, use_cases=[2], probe=5, description='d' * 4000"
    folder.file("own.py", HEAD + f"@skill({parts})\nasync def odd(n: int) -> int:\n    return n\n")
    assert await refused(host, "own.py") == [
        f'own.py:13: skill "odd": {told}'
        for told in (
            "its description may have 3500 characters, and has 4000",
            'each of its examples must be an Example, found {"n": 1}',
            "each of its use cases must be text, found 2",
            "each of its rules must be a rule, such as Range, found 3",
            'its family must be a Family, found "disks"',
            "its annotations must be Annotations, found 1",
            "its probe must be an async function, found 5",
        )
    ]


async def test_two_families_of_one_name_are_one_too_many(folder: Folder, host: Host) -> None:
    other = "Family('disks', 'Others.', here)"
    folder.file("own.py", HEAD + PROBES + f"@skill(description='d', family={other})\nasync def third() -> int:\n    return 3\n")
    assert await refused(host, "own.py") == ['own.py:29: there are two families called "disks"']


async def test_all_that_is_wrong_with_python_files_is_told_at_their_lines(folder: Folder, host: Host) -> None:
    folder.file("broken.py", "import trio\n\n1 / 0\n")
    folder.file("syntax.py", "def x(:\n")
    folder.file("none.py", "x = 1\n")
    folder.file(
        "wrong.py",
        "from cuttlefish.mcp.python_skills import shared, skill\n"
        "@skill(name='no name!')\ndef plain(x):\n    return 1\n"
        "class Odd: ...\nclass Store: ...\n@shared\ndef store() -> Store: ...\n"
        "@shared\ndef untyped():\n    return 1\n"
        "@skill(description='d')\nasync def odd(x: Odd) -> Odd:\n    return 1\n"
        "@skill(description='d')\nasync def many(*x: int) -> int:\n    return 1\n"
        "@skill(description='d')\nasync def gone(x: 'Nowhere') -> int:\n    return 1\n"
        "@skill(description='d')\nasync def off(x: int = 'three', y: str = None) -> int:\n    return 1\n",
    )
    told = await refused(host, "broken.py", "syntax.py", "none.py", "wrong.py")
    assert told == [
        "broken.py:3: cannot be loaded: ZeroDivisionError: division by zero",
        "syntax.py:1: cannot be loaded: SyntaxError: invalid syntax (syntax.py, line 1)",
        "none.py: has no skills: no function with @skill",
        'wrong.py:2: skill "no name!": its name may have letters, digits, - and _, 64 at most',
        'wrong.py:2: skill "no name!": it has no description: give one, or write a docstring',
        'wrong.py:2: skill "no name!": it must be an async function; blocking work belongs into trio.to_thread.run_sync',
        'wrong.py:2: skill "no name!": its parameter "x" must be a single one with an annotation',
        'wrong.py:2: skill "no name!": it must say what it returns, by an annotation',
        'wrong.py:9: shared "untyped" has no return annotation, by which skills would ask for it',
        'wrong.py:12: skill "odd": its parameter "x" has a type that cannot be read from JSON, Odd; shared are: Store',
        'wrong.py:12: skill "odd": it returns a type that cannot be written as JSON, Odd',
        'wrong.py:15: skill "many": its parameter "x" must be a single one with an annotation',
        "wrong.py:18: skill \"gone\": its annotations cannot be read: name 'Nowhere' is not defined",
        'wrong.py:21: skill "off": its parameter "x" has a default that is not of its type, "three"',
        'wrong.py:21: skill "off": its parameter "y" has a default that is not of its type, null',
    ]


async def test_a_name_is_taken_once_whatever_a_skill_is_made_of(folder: Folder, host: Host) -> None:
    folder.file("p.toml", 'name = "add"\nblock = "join"\n')
    folder.file("own.py", HEAD + STORE)
    (told,) = await refused(host, "p.toml", "own.py")
    assert told == 'own.py:30: the name "add" is taken by p.toml:1'


async def test_shared_state_that_cannot_be_made_is_told_with_its_line(folder: Folder, host: Host) -> None:
    folder.file("own.py", HEAD + STORE + "\n@shared\ndef bad() -> int:\n    raise OSError('the disk is away')\n")
    (told,) = await refused(host, "own.py")
    assert told.endswith('own.py:38: shared "bad" broke: OSError: the disk is away')
    assert Path("closed.txt").read_text() == "a"  # what was made before is ended


async def test_packages_offer_modules_with_skills(folder: Folder, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.file("site/our_skills.py", HEAD + STORE)
    folder.file("site/our_skills-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: our-skills\nVersion: 1\n")
    folder.file("site/our_skills-1.dist-info/entry_points.txt", "[cuttlefish.skills]\nours = our_skills\nnone = our_skills:store\n")
    monkeypatch.syspath_prepend(folder.path / "site")
    with pytest.raises(PipelineError) as caught:
        async with open_skills(host, [], entry_points=True):
            pass
    assert str(caught.value) == "entry point none: our_skills:store is no module; skills are offered as one"
    folder.file("site/our_skills-1.dist-info/entry_points.txt", "[cuttlefish.skills]\nours = our_skills\n")
    async with open_skills(host, [], entry_points=True) as skills:
        assert await outcome(skills.skills["add"], name="b") == ["a", "b", "b"]


async def test_a_task_of_a_host_ends_in_an_envelope_whatever_it_does() -> None:
    async def well(job: Job, costs: Costs) -> object:
        job.progress({"n": 1})
        return {"ok": True}

    async def no_json(job: Job, costs: Costs) -> object:
        return {"ok": object()}

    async def endless(job: Job, costs: Costs) -> object:
        await trio.sleep_forever()

    async def refuses(job: Job, costs: Costs) -> object:
        raise CuttlefishError("no", code="own_code")

    async def large(job: Job, costs: Costs) -> object:
        return "x" * 2000

    async with open_host(limits={"job.time": 0.05, "guest.message": 1000}) as host:
        ends = [await host.start_task("t", function).envelope() for function in (well, no_json, endless, refuses, large)]
    assert [(one.error.code if one.error else one.result) for one in ends] == [
        {"ok": True},
        "internal",
        "timeout",
        "own_code",
        "limit_exceeded",
    ]
    assert json.loads(ends[0].model_dump_json())["usage"]["duration_ms"] > 0


async def test_no_more_tasks_than_jobs_run_at_once_and_the_others_wait_in_order() -> None:
    running: list[int] = []
    most = 0
    go = trio.Event()

    async with open_host(max_jobs=2) as host:

        def task(number: int) -> Job:
            async def work(job: Job, costs: Costs) -> object:
                nonlocal most
                running.append(number)
                most = max(most, len(running))
                await go.wait()
                running.remove(number)
                order.append(number)
                return number

            return host.start_task("t", work)

        order: list[int] = []
        jobs = [task(number) for number in range(6)]
        with trio.fail_after(60):
            await trio.testing.wait_all_tasks_blocked()
            assert [job.status for job in jobs] == [JobStatus.RUNNING] * 2 + [JobStatus.QUEUED] * 4
            go.set()
            for job in jobs:
                await job.envelope()
    assert (most, sorted(order), order[:2]) == (2, list(range(6)), order[:2])


async def test_leaving_the_host_ends_its_tasks() -> None:
    async def endless(job: Job, costs: Costs) -> object:
        await trio.sleep_forever()

    async with open_host() as host:
        job = host.start_task("t", endless)
    assert (await job.envelope()).status is JobStatus.CANCELLED
