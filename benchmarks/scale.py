"""How much is measured."""

from dataclasses import dataclass

__all__ = ["FULL", "QUICK", "Scale"]


@dataclass(frozen=True, slots=True)
class Scale:
    """Numbers of repeats, and sizes."""

    rounds: int
    step_calls: int
    """Calls per round at small payloads; large ones get fewer."""
    walk_bytes: int
    walk_rounds: int
    starts: int
    cold_starts: int
    cancels: int
    jobs: int
    tokens: int
    graph_nodes: int
    graph_rounds: int
    run_nodes: int
    reply_tokens: int
    reply_rounds: int
    prefix_entries: int
    """Of some 17 tokens each."""
    prefix_rounds: int
    document_pages: int
    document_rounds: int
    drawn_pages: int
    awkward_bytes: int
    """Of the text whose words are counted in every language."""


FULL = Scale(
    rounds=25,
    step_calls=2_000,
    walk_bytes=100_000_000,
    walk_rounds=7,
    starts=300,
    cold_starts=10,
    cancels=200,
    jobs=10_000,
    tokens=5_000,
    graph_nodes=1_000,
    graph_rounds=15,
    run_nodes=200,
    reply_tokens=64,
    reply_rounds=7,
    prefix_entries=54,
    prefix_rounds=5,
    document_pages=300,
    document_rounds=15,
    drawn_pages=10,
    awkward_bytes=8 << 20,
)

QUICK = Scale(
    rounds=3,
    step_calls=50,
    walk_bytes=5_000_000,
    walk_rounds=2,
    starts=5,
    cold_starts=1,
    cancels=5,
    jobs=100,
    tokens=100,
    graph_nodes=50,
    graph_rounds=2,
    run_nodes=10,
    reply_tokens=8,
    reply_rounds=1,
    prefix_entries=10,
    prefix_rounds=1,
    document_pages=12,
    document_rounds=2,
    drawn_pages=2,
    awkward_bytes=256 << 10,
)
