"""Side-by-side measurements against peers: `python -m benchmarks guest`. Not part of the tests; `docs/numbers.md` shows them."""
