"""Side-by-side measurements against peers: `python -m benchmarks SUITE`. Not part of the tests; `docs/numbers.md` shows them."""
