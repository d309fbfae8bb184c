"""What is remembered of the jobs that agents start, and how many of them may wait."""

import pytest
import trio

from cuttlefish.jobs.job import Job
from cuttlefish.jobs.turns import Client
from cuttlefish.mcp.clients import machine_of
from cuttlefish.mcp.jobs_store import MOST_UNFINISHED, JobsStore, open_jobs_store
from cuttlefish_abi import Envelope, JobStatus, Usage

USAGE = Usage(tokens_in=0, tokens_out=0, duration_ms=0, model=None)


def fill(store: JobsStore, client: Client) -> list[Job]:
    """Jobs of a client, as many as it may have."""
    jobs: list[Job] = []
    while store.has_room(client):
        jobs.append(Job(f"{client}{len(jobs)}", 1))
        store.add("tool", jobs[-1], client)
    return jobs


async def test_a_client_alone_has_the_whole_room() -> None:
    async with open_jobs_store() as store:
        assert len(fill(store, ())) == MOST_UNFINISHED


async def test_a_client_that_takes_all_it_may_leaves_room_for_others() -> None:
    async with open_jobs_store() as store:
        assert len(fill(store, ("here", "greedy"))) == MOST_UNFINISHED // 3 + 1
        assert len(fill(store, ("here", "another"))) > 100
        assert len(fill(store, ("there", "greedy"))) > 100


async def test_no_machine_takes_the_room_of_others_under_however_many_names() -> None:
    async with open_jobs_store() as store:
        assert sum(len(fill(store, ("here", name))) for name in range(600)) == MOST_UNFINISHED // 2
        assert len(fill(store, ("there", "one"))) > 100


async def test_jobs_that_are_over_make_room() -> None:
    async with open_jobs_store() as store:
        jobs = fill(store, ("here", "one"))
        stored = store.get(jobs[0].id)
        assert stored is not None
        jobs[0].finished(Envelope(status=JobStatus.COMPLETED, result=1, usage=USAGE))
        await stored.over.wait()
        assert len(fill(store, ("here", "one"))) == 1


MACHINES = {
    "this one": ("127.0.0.1", "local"),
    "this one by another address": ("127.8.9.10", "local"),
    "this one in IPv6": ("::1", "local"),
    "this one in both": ("::ffff:127.0.0.1", "local"),
    "another": ("192.0.2.7", "192.0.2.7"),
    "another in both": ("::ffff:192.0.2.7", "192.0.2.7"),
    "a network of IPv6": ("2001:db8:1:2:3:4:5:6", "2001:0db8:0001:0002"),
    "another address in it": ("2001:db8:1:2::9", "2001:0db8:0001:0002"),
    "one of this link": ("fe80::1%eth0", "fe80:0000:0000:0000"),
}


@pytest.mark.parametrize(("address", "machine"), MACHINES.values(), ids=MACHINES)
def test_a_machine_is_one_under_all_addresses_that_it_may_take(address: str, machine: str) -> None:
    assert machine_of((address, 1234)) == machine


PROGRESS: dict[str, tuple[object, str]] = {
    "message": ({"message": "reading", "page": 3, "of": 10}, "reading, page 3, of 10"),
    "parts": ({"stage": "reading", "done": [1, 2]}, "stage reading, done [1, 2]"),
    "text": ("reading", '"reading"'),
    "number": (3, "3"),
    "nothing": ({}, ""),
    "long": ({"message": "x" * 1000}, "x" * 199 + "…"),
    "many": (dict.fromkeys(map(str, range(1000)), 1), ""),
}


@pytest.mark.parametrize(("value", "told"), PROGRESS.values(), ids=PROGRESS)
async def test_progress_is_told_in_a_few_words(value: object, told: str) -> None:
    async with open_jobs_store() as store:
        job = Job("1", 10)
        stored = store.add("tool", job, ())
        job.started()
        job.progress(value)
        while not stored.reports:
            await trio.lowlevel.checkpoint()
        assert stored.state().removeprefix("running").removeprefix(": ").startswith(told)
        assert len(stored.state()) <= len("running: ") + 200
