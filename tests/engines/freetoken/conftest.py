"""Where FreeToken is not installed, only the parts that do not need it are collected."""

from importlib.util import find_spec

collect_ignore = (
    [] if find_spec("freetoken") else ["test_api.py", "test_mutations.py", "test_scheduler.py", "test_server.py"]
)
