"""`python -m benchmarks SUITE [--quick]`: measure, print, and write what `docs/numbers.md` is made from."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import agents, blocks, cancel, documents, inference, memory, pipeline, start, step, tokens, walk
from benchmarks.report import RESULTS, Part, Report, beside_ours, machine, show_amount, write_report
from benchmarks.scale import FULL, QUICK, Scale

GUEST_PARTS: dict[str, Callable[[Scale], Part]] = {
    "step": step.measure,
    "walk": walk.measure,
    "tokens": tokens.measure,
    "start": start.measure,
    "cancel": cancel.measure,
    "memory": memory.measure,
}

PIPELINE_PARTS: dict[str, Callable[[Scale], Part]] = {
    "check": pipeline.measure_check,
    "nodes": pipeline.measure_nodes,
}

DOCUMENTS_PARTS: dict[str, Callable[[Scale], Part]] = {
    "text": documents.measure_text,
    "pages": documents.measure_pages,
    "images": documents.measure_images,
    "together": documents.measure_together,
}

INFERENCE_PARTS: dict[str, Callable[[Scale], Part]] = {
    "rate": inference.measure_rate,
    "pieces": inference.measure_pieces,
    "prefix": inference.measure_prefix,
}

BLOCKS_PARTS: dict[str, Callable[[Scale], Part]] = {"languages": blocks.measure}

AGENTS_PARTS: dict[str, Callable[[Scale], Part]] = {
    "calls": agents.measure_calls,
    "ready": agents.measure_ready,
}

SUITES = {
    "blocks": BLOCKS_PARTS,
    "guest": GUEST_PARTS,
    "pipeline": PIPELINE_PARTS,
    "documents": DOCUMENTS_PARTS,
    "inference": INFERENCE_PARTS,
    "agents": AGENTS_PARTS,
}

QUICK_RESULTS = RESULTS.parent.parent / "build" / "benchmarks"


def main() -> int:
    """Measure one suite. 0 whether or not the targets are met: they are for people to judge, on a quiet machine."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure cuttlefish beside its peers, in one run.")
    parser.add_argument("suite", choices=SUITES, help="what to measure")
    parser.add_argument("--quick", action="store_true", help="few repeats, small sizes: to see that it runs, not for its numbers")
    parser.add_argument("--only", action="append", metavar="PART", help="this part only (may be given again)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the results; not the committed ones if --quick")
    arguments = parser.parse_args()
    suite = SUITES[arguments.suite]
    if unknown := [name for name in arguments.only or [] if name not in suite]:
        parser.error(f"{arguments.suite} has no part {unknown[0]}; it has {', '.join(suite)}")
    parts = {name: part for name, part in suite.items() if name in (arguments.only or suite)}
    report = Report(arguments.quick, machine(), [])
    print(", ".join(f"{name} {version}" for name, version in report.machine.items()), flush=True)
    for measure in parts.values():
        part = measure(QUICK if arguments.quick else FULL)
        report.parts.append(part)
        show(part)
    is_whole = not arguments.quick and not arguments.only
    default = (RESULTS / f"{arguments.suite}.json") if is_whole else (QUICK_RESULTS / f"{arguments.suite}-quick.json")
    write_report(report, path := arguments.json or default)
    missed = [target.text for part in report.parts for target in part.targets if not target.met]
    print(f"\n{'All targets are met' if not missed else 'Missed: ' + '; '.join(missed)}. Results in {path}")
    return 0


def show(part: Part) -> None:
    """Print one part as it is done."""
    print(f"\n{part.name}: {part.what}")
    print(f"  {'case':<34} {'':<31} {'lowest':>10} {'median':>10} {'p99':>10} {'to ours':>9}")
    for row in part.rows:
        lowest, median, p99 = (show_amount(amount, row.unit) for amount in (row.lowest, row.median, row.p99))
        ratio = show_amount(beside_ours(part, row), "×")
        print(f"  {row.case:<34} {row.peer:<31} {lowest:>10} {median:>10} {p99:>10} {ratio:>9}")
    for target in part.targets:
        found, bound = show_amount(target.value, target.unit), show_amount(target.bound, target.unit)
        print(f"  {'met   ' if target.met else 'MISSED'} {target.text}: {found} (target {'≥' if target.at_least else '≤'} {bound})")
    if part.same_output:
        print(f"  the same output: {', '.join(part.same_output)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
