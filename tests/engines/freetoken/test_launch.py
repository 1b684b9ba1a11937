"""Putting our functions where FreeToken's are, in FreeToken's launcher and through the door; on stand-in modules."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from router.engines.freetoken import checks, door, launch
from router.engines.freetoken.options import DOOR
from router.engines.targets import HookError

ROOT = Path(__file__).parents[3]


class Queue:
    """multiprocessing's queue, as a process that starts uses it."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def put(self, message: Any) -> None:
        self.said.append(message)

    def close(self) -> None: ...

    def join_thread(self) -> None: ...


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`freetoken.server.launch`, with functions that note their calls."""
    module: Any = types.ModuleType("freetoken.server.launch")
    module.calls = []

    def _run_scheduler(args: Any, ack_queue: Any) -> None:
        module.calls.append(("scheduler", args))

    def _run_tokenize_worker(detach: bool, **kwargs: Any) -> None:
        module.calls.append(("tokenizer", detach))

    def launch_server(run_shell: bool = False, argv: Any = None, prog: Any = None) -> None:
        module.calls.append(("server", argv))

    module._run_scheduler = _run_scheduler
    module._run_tokenize_worker = _run_tokenize_worker
    module.launch_server = launch_server
    packages = {name: types.ModuleType(name) for name in ("freetoken", "freetoken.server", "freetoken.version")}
    packages["freetoken.server"].launch = module  # type: ignore[attr-defined]
    packages["freetoken.version"].__version__ = "0.2.1"  # type: ignore[attr-defined]
    for name, package in packages.items():
        monkeypatch.setitem(sys.modules, name, package)
    monkeypatch.setitem(sys.modules, "freetoken.server.launch", module)
    return module


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stand-ins for the modules that hook FreeToken's classes; what was installed, in order."""
    done: list[str] = []
    for name in ("api", "scheduler", "tokenizer"):
        module: Any = types.ModuleType(name)
        module.install = lambda *options, name=name: done.append(name)
        monkeypatch.setitem(sys.modules, f"router.engines.freetoken.{name}", module)
        monkeypatch.setattr("router.engines.freetoken." + name, module, raising=False)
    return done


def test_each_process_is_hooked_before_freetoken_runs(upstream: Any, installed: list[str]) -> None:
    launch.serve(["--model", "m"])
    assert installed == ["api"]
    upstream._run_scheduler("args", Queue())
    upstream._run_tokenize_worker(False, ack_queue=Queue())
    assert installed == ["api", "scheduler", "tokenizer"]
    assert upstream.calls == [("server", ["--model", "m"]), ("scheduler", "args"), ("tokenizer", False)]


def test_entering_twice_is_entering_once(upstream: Any, installed: list[str]) -> None:
    launch.enter(upstream)
    launch.enter(upstream)
    upstream.launch_server(argv=[])
    assert installed == ["api"]
    assert upstream.calls == [("server", [])]


def test_a_child_that_has_not_entered_runs_freetokens_own(upstream: Any, installed: list[str]) -> None:
    launch.run_scheduler("args", Queue())
    assert upstream.calls == [("scheduler", "args")]


def test_a_process_that_cannot_be_hooked_says_why(upstream: Any, installed: list[str]) -> None:
    def refuse(*options: Any) -> None:
        raise HookError("it moved")

    sys.modules["router.engines.freetoken.scheduler"].install = refuse  # type: ignore[attr-defined]
    queue = Queue()
    with pytest.raises(HookError):
        launch.run_scheduler("args", queue)
    assert queue.said == [("error", "HookError: it moved")]
    assert upstream.calls == []


def test_a_launcher_that_moved_is_refused(upstream: Any, installed: list[str]) -> None:
    def _run_scheduler(args: Any) -> None: ...

    upstream._run_scheduler = _run_scheduler
    launch.enter(upstream)
    with pytest.raises(HookError, match=r"_run_scheduler\(args\) was \(args, ack_queue\)"):
        upstream.launch_server()
    assert upstream.calls == []


def test_an_untested_version_is_refused(upstream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "VERSIONS", ("9.9",))
    with pytest.raises(HookError, match="was not tested"):
        launch.serve([])


def test_the_door_hooks_a_launcher_that_is_there(upstream: Any, installed: list[str]) -> None:
    door.open_door()
    upstream.launch_server(argv=["x"])
    assert installed == ["api"]


def test_the_door_waits_for_the_launcher(tmp_path: Path) -> None:
    """In a process of its own, as the .pth line opens it: nothing is imported early, and the launcher is hooked."""
    package = tmp_path / "freetoken" / "server"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("")
    (package / "launch.py").write_text(
        "def _run_scheduler(args, ack_queue): ...\n_run_tokenize_worker = launch_server = print\n"
    )
    (tmp_path / "door.pth").write_text((ROOT / "router/engines/freetoken/door.pth").read_text())
    program = (
        f"import site, sys; site.addsitedir({str(tmp_path)!r}); before = 'freetoken' in sys.modules;"
        "import freetoken.server.launch as launch; print(before, launch._run_scheduler.__module__)"
    )

    def run(value: str) -> str:
        environ = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}", DOOR: value}
        return subprocess.check_output([sys.executable, "-c", program], env=environ, text=True).strip()

    assert run("1") == "False router.engines.freetoken.launch"
    assert run("0") == "False freetoken.server.launch"


def test_after_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "late_module.py").write_text("word = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[int] = []
    monkeypatch.setattr(
        sys, "meta_path", [door.AfterImport("late_module", lambda m: seen.append(m.word)), *sys.meta_path]
    )
    import late_module

    assert seen == [late_module.word]
    monkeypatch.delitem(sys.modules, "late_module")
    import late_module  # once is enough

    assert seen == [1]


def test_the_door_is_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, door.LAUNCH, raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = len(sys.meta_path)
    door.open_door()
    door.open_door()
    assert len(sys.meta_path) == before + 1


def test_after_import_leaves_other_modules_alone() -> None:
    finder = door.AfterImport("nobody_has_this", lambda module: None)
    assert finder.find_spec("json") is None
    assert finder.find_spec("nobody_has_this") is None
