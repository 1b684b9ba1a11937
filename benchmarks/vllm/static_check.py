"""Whether a vLLM wheel's Python sources have what our patch hooks, with the same parameters. Nothing is installed.

python benchmarks/vllm/static_check.py vllm-0.33.0-….whl
"""

from __future__ import annotations

import ast
import sys
import zipfile

from router.engines.targets import Target
from router.engines.vllm.checks import ENTRY_TARGETS, SCHEDULER_TARGETS


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, ...]:
    """Names in the order of `inspect.signature`."""
    given = function.args
    star = [given.vararg] if given.vararg else []
    stars = [given.kwarg] if given.kwarg else []
    return tuple(one.arg for one in (*given.posonlyargs, *given.args, *star, *given.kwonlyargs, *stars))


def problem(wheel: zipfile.ZipFile, target: Target) -> str | None:
    """What is wrong with a target in the wheel, or None."""
    module, _, dotted = target.path.partition(":")
    try:
        nodes: list[ast.stmt] = ast.parse(wheel.read(module.replace(".", "/") + ".py")).body
    except KeyError:
        return f"{target.path} is missing"
    *outer, name = dotted.split(".")
    for part in outer:
        nodes = next((node.body for node in nodes if isinstance(node, ast.ClassDef) and node.name == part), [])
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return target.differs(parameters(node))
    return f"{target.path} is missing"


def main() -> None:
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        targets = (*SCHEDULER_TARGETS, *ENTRY_TARGETS)
        found = [text for target in targets if (text := problem(wheel, target))]
    print("\n".join(found) or f"all {len(targets)} fit")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
