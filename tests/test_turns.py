"""Who runs next: in rounds over the clients that wait, and each is told its true place."""

from collections import Counter
from itertools import pairwise

import trio
from hypothesis import given
from hypothesis import strategies as st

from cuttlefish.jobs.turns import Client, Turn, Turns

CLIENTS = st.lists(st.sampled_from("abc"), max_size=2).map(tuple)


async def serve(turn: Turn) -> None:
    """The turn comes and is over. It must be there already."""
    assert not turn.waits
    async with turn:
        pass


async def give_up(turn: Turn) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        async with turn:
            raise AssertionError("it waited, and was cancelled")


async def order_of(turns: Turns, running: Turn, waiting: list[Turn]) -> list[Turn]:
    """Those that wait, as they come when whoever has the turn gives it up."""
    left, order = [*waiting], list[Turn]()
    while True:
        await serve(running)
        come = [turn for turn in left if not turn.waits]
        if not come:
            assert not left
            return order
        (running,) = come
        left.remove(running)
        order.append(running)


@given(st.lists(st.tuples(CLIENTS, st.booleans())))
def test_each_is_told_how_many_come_first_and_they_come_in_rounds(joins: list[tuple[Client, bool]]) -> None:
    async def check() -> None:
        turns = Turns(1)
        running = turns.join(("x",))
        joined = [(turns.join(client), client, stays) for client, stays in joins]
        for turn, _, stays in joined:
            if not stays:
                await give_up(turn)
                assert turn.ahead() == 0
        waiting = {turn: client for turn, client, stays in joined if stays}
        told = {turn: turn.ahead() for turn in waiting}
        order = await order_of(turns, running, list(waiting))
        assert [told[turn] for turn in order] == list(range(len(order)))
        by_client: dict[Client, list[Turn]] = {}
        for turn in order:
            by_client.setdefault(waiting[turn], []).append(turn)
        assert all(come == [turn for turn in waiting if waiting[turn] == client] for client, come in by_client.items())
        for whole in {client[:length] for client in waiting.values() for length in range(len(client) + 1)}:
            check_rounds([(*waiting[turn], None)[len(whole)] for turn in order if waiting[turn][: len(whole)] == whole])

    def check_rounds(parts: list[str | None]) -> None:
        """As long as a part waits, no other comes twice before it."""
        for part in set(parts):
            own = [index for index, one in enumerate(parts) if one == part]
            for before, after in pairwise([-1, *own]):
                assert max(Counter(parts[before + 1 : after]).values(), default=0) <= 1

    trio.run(check)


@given(st.lists(st.one_of(CLIENTS, st.none()), max_size=60), st.integers(1, 4))
def test_as_many_run_as_may_whoever_comes_and_goes(steps: list[Client | None], most: int) -> None:
    async def check() -> None:
        turns, here = Turns(most), list[Turn]()
        for client in steps:
            if client is not None:
                here.append(turns.join(client))
            elif here:
                await (give_up if here[0].waits else serve)(here[0])
                del here[0]
            assert sum(not turn.waits for turn in here) == min(most, len(here))

    trio.run(check)


def test_who_comes_later_waits_for_one_of_each_other_and_not_for_all() -> None:
    turns = Turns(1)
    turns.join(("many",))
    many = [turns.join(("many",)) for _ in range(20)]
    assert [turn.ahead() for turn in many] == list(range(20))
    assert turns.join(("few",)).ahead() == 1
    assert [turn.ahead() for turn in many] == [0, *range(2, 21)]


def test_no_machine_gains_by_calling_itself_many_programs() -> None:
    turns = Turns(1)
    turns.join(("far", 0))
    for name in range(20):
        turns.join(("far", name))
    assert [turns.join(("near", 0)).ahead() for _ in range(3)] == [1, 3, 5]
