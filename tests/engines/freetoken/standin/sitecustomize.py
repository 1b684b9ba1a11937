"""On PYTHONPATH of the FreeToken servers that the tests start: puts the CPU stand-in where FreeToken's engine was.

Everything else in the server is FreeToken's own: processes, messages, tokenizer, scheduler, caches, API. Variables:
    FREETOKEN_STANDIN           radix or hybrid: the prefix cache of the model that it stands for
    FREETOKEN_STANDIN_STEP      seconds that each pass takes at least
"""

import os


def _engine(scheduler):
    from tests.engines.freetoken.standin import engine

    engine.install(scheduler, os.environ["FREETOKEN_STANDIN"])


def _arrange():
    import sys

    from router.engines.freetoken.door import AfterImport

    sys.meta_path.insert(0, AfterImport("freetoken.scheduler.scheduler", _engine))


if os.environ.get("FREETOKEN_STANDIN"):
    _arrange()
