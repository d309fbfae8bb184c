"""In which order nodes run, which ones wait for each other in a circle, and which ones no choice of labels lets run."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Conditions", "find_conditions", "find_order"]

Conditions = dict[str, frozenset[str]]
"""For each decision that matters to a node: the labels with which it runs."""


def find_order(waits: Mapping[str, Iterable[str]]) -> tuple[list[str], list[list[str]]]:
    """An order in which each node follows all that it waits for, ready ones as they are given; and every circle.

    Nodes of circles are in the order too, as if the circle were cut, so that the rest can be checked.
    """
    followers: dict[str, list[str]] = {name: [] for name in waits}
    left: dict[str, set[str]] = {name: set(before) for name, before in waits.items()}
    for name, before in left.items():
        for other in before:
            followers[other].append(name)
    order: list[str] = []
    circles: list[list[str]] = []
    ready = deque(name for name, before in left.items() if not before)
    while left:
        if not ready:
            circle = _circle(left)
            circles.append(circle)
            ready.extend(circle)
        name = ready.popleft()
        if left.pop(name, None) is None:
            continue  # it stood in a circle, and what it waited for is over by now
        order.append(name)
        for follower in followers[name]:
            if follower in left:
                left[follower].discard(name)
                if not left[follower]:
                    ready.append(follower)
    return order, circles


def _circle(waits: Mapping[str, set[str]]) -> list[str]:
    """One circle among nodes of which each waits for another, in the order in which data would flow, from its first node on."""
    steps: dict[str, int] = {}
    name = next(iter(waits))
    while name not in steps:
        steps[name] = len(steps)
        name = min(waits[name])
    circle = list(steps)[steps[name] :][::-1]
    first = circle.index(next(one for one in waits if one in set(circle)))
    return circle[first:] + circle[:first]


def find_conditions(
    order: Sequence[str], deciders: Mapping[str, Mapping[str, Iterable[str]]], needs: Mapping[str, Iterable[str]]
) -> tuple[dict[str, Conditions], dict[str, str]]:
    """What must be decided for each node to run, and the nodes that never do, each with the decision that contradicts itself.

    `deciders` has the labels with which a decision lets a node run, `needs` the nodes whose outputs it cannot do without.
    """
    conditions: dict[str, Conditions] = {}
    never: dict[str, str] = {}
    for name in order:
        own = {decider: frozenset(labels) for decider, labels in deciders[name].items()}
        for before in (*needs[name], *deciders[name]):
            for decider, labels in conditions.get(before, {}).items():
                own[decider] = own.get(decider, labels) & labels
        impossible = next((decider for decider, labels in own.items() if not labels), None)
        if impossible is not None:
            never[name] = impossible
        # What follows a node that never runs is not told again.
        conditions[name] = {} if impossible is not None else own
    return conditions, never
