"""Where vLLM is not installed, only the parts that do not need it are collected."""

import warnings
from importlib.util import find_spec

HERE = [
    "test_scheduler.py",
    "test_mutations.py",
    "test_middleware.py",
    "test_server.py",
    "test_clients.py",
    "test_decisions.py",
]
collect_ignore = [] if find_spec("vllm") else HERE

if find_spec("vllm"):
    # Warnings are errors in our tests; those of importing vLLM and what it brings are not ours.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import vllm.v1.engine.async_llm
        import vllm.v1.engine.core  # noqa: F401
