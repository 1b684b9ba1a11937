"""The checks before anything is hooked. In vLLM's environment they run on the real one too."""

from __future__ import annotations

import logging
import sys
import types
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

from router.engines.targets import HookError, Target
from router.engines.vllm import checks


def config(**asked: Any) -> Any:
    def given(name: str, default: Any) -> Any:
        return asked.get(name, default)

    return SimpleNamespace(
        kv_transfer_config=given("kv_transfer_config", None),
        ec_transfer_config=given("ec_transfer_config", None),
        speculative_config=given("speculative_config", None),
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=given("pipeline_parallel_size", 1), data_parallel_size=given("data_parallel_size", 1)
        ),
        model_config=SimpleNamespace(
            is_moe=given("is_moe", False),
            is_encoder_decoder=given("is_encoder_decoder", False),
            is_diffusion=given("is_diffusion", False),
        ),
    )


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"kv_transfer_config": object()}, "KV connectors"),
        ({"ec_transfer_config": object()}, "encoder-cache connectors"),
        ({"speculative_config": object()}, "speculative decoding"),
        ({"pipeline_parallel_size": 2}, "pipeline parallelism"),
        ({"data_parallel_size": 2, "is_moe": True}, "mixture-of-experts"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"is_diffusion": True}, "diffusion"),
    ],
)
def test_what_is_not_covered_is_refused_by_name(asked: dict[str, Any], named: str) -> None:
    with pytest.raises(HookError, match=named):
        checks.refuse_unsupported(config(**asked))


@pytest.mark.parametrize("asked", [{}, {"data_parallel_size": 2}, {"is_moe": True}])
def test_what_is_covered_runs(asked: dict[str, Any]) -> None:
    checks.refuse_unsupported(config(**asked))


def fake(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setitem(sys.modules, "vllm", types.ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.version", SimpleNamespace(__version__=version))  # type: ignore[arg-type]


def test_the_version_without_its_build(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, "0.32.0+cpu")
    assert checks.version() == "0.32.0"


def test_no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm.version", None)
    with pytest.raises(HookError, match="not installed beside logprob-router"):
        checks.check_version()


def test_what_moved_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, "0.99.0")
    module = types.ModuleType("vllm.thing")
    module.run = lambda self, other: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.thing", module)
    monkeypatch.setattr(checks, "SCHEDULER_TARGETS", (Target("vllm.thing:run", ("self", "request")),))
    monkeypatch.setattr(checks, "ENTRY_TARGETS", (Target("vllm.thing:gone", ("self",)),))
    with pytest.raises(HookError) as refusal:
        checks.check_version()
    assert str(refusal.value) == (
        "vLLM 0.99.0 does not fit the read hooks (they fit 0.32.0): "
        "vllm.thing:run(self, other) was (self, request); vllm.thing:gone is missing"
    )


def test_a_version_that_was_not_tried_runs_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake(monkeypatch, "0.99.0")
    monkeypatch.setattr(checks, "problems", list)
    with caplog.at_level(logging.WARNING):
        assert checks.check_version() == "0.99.0"
    assert "vLLM 0.99.0 was not tried with the read hooks (tried: 0.32.0)" in caplog.text
    caplog.clear()
    fake(monkeypatch, "0.32.0")
    assert checks.check_version() == "0.32.0"
    assert caplog.text == ""


def test_a_scheduler_that_lacks_something() -> None:
    whole: Any = SimpleNamespace(kv_cache_manager=SimpleNamespace(coordinator=1, block_pool=1))
    for name in checks.ATTRIBUTES:
        if "." not in name:
            setattr(whole, name, 1)
    checks.check_attributes(whole)
    del whole.policy
    del whole.kv_cache_manager.block_pool
    with pytest.raises(HookError, match=r"it lacks policy, kv_cache_manager\.block_pool"):
        checks.check_attributes(whole)


@pytest.mark.engines
@pytest.mark.skipif(not find_spec("vllm"), reason="vLLM's environment")
def test_the_installed_vllm_fits() -> None:
    assert checks.check_version() in checks.VERSIONS
    assert checks.problems() == []
