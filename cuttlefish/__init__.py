"""A host for sandboxed WebAssembly blocks that read documents and ask a language model.

    import cuttlefish

    envelope = cuttlefish.run("summarize.wasm", {"path": "report.pdf"}, model="llama-cpp:smollm2", read=["."])
    print(envelope.model_dump_json(indent=2))

With an event loop of one's own (Trio), `open_host` gives a `Host` whose jobs can be watched and cancelled.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cuttlefish.engine.module import BlockBytes as BlockBytes
    from cuttlefish.errors import CuttlefishError as CuttlefishError
    from cuttlefish.host import Host as Host
    from cuttlefish.host import open_host as open_host
    from cuttlefish.host import run as run
    from cuttlefish.jobs.job import Job as Job
    from cuttlefish.jobs.result_images import ResultImage as ResultImage
    from cuttlefish.jobs.updates import Dropped as Dropped
    from cuttlefish.jobs.updates import Finished as Finished
    from cuttlefish.jobs.updates import LogLine as LogLine
    from cuttlefish.jobs.updates import Origin as Origin
    from cuttlefish.jobs.updates import Progress as Progress
    from cuttlefish.jobs.updates import TokenPiece as TokenPiece
    from cuttlefish.limits import Limits as Limits
    from cuttlefish.pipeline.forms import Node as Node
    from cuttlefish.pipeline.forms import Pipeline as Pipeline
    from cuttlefish.pipeline.forms import Repeat as Repeat
    from cuttlefish.pipeline.spec import PipelineError as PipelineError
    from cuttlefish_abi import Envelope as Envelope
    from cuttlefish_abi import JobStatus as JobStatus

_HOMES = {
    "BlockBytes": "cuttlefish.engine.module",
    "CuttlefishError": "cuttlefish.errors",
    "Dropped": "cuttlefish.jobs.updates",
    "Envelope": "cuttlefish_abi",
    "Finished": "cuttlefish.jobs.updates",
    "Host": "cuttlefish.host",
    "Job": "cuttlefish.jobs.job",
    "JobStatus": "cuttlefish_abi",
    "Limits": "cuttlefish.limits",
    "LogLine": "cuttlefish.jobs.updates",
    "Node": "cuttlefish.pipeline.forms",
    "Origin": "cuttlefish.jobs.updates",
    "Pipeline": "cuttlefish.pipeline.forms",
    "PipelineError": "cuttlefish.pipeline.spec",
    "Progress": "cuttlefish.jobs.updates",
    "Repeat": "cuttlefish.pipeline.forms",
    "ResultImage": "cuttlefish.jobs.result_images",
    "TokenPiece": "cuttlefish.jobs.updates",
    "open_host": "cuttlefish.host",
    "run": "cuttlefish.host",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: importing all of them takes half a second, which `--help` need not pay."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__]
