from __future__ import annotations

import pytest

from router.engines.vllm.options import PREFIX, Options


def test_options_travel_in_the_environment() -> None:
    environ: dict[str, str] = {}
    options = Options(isolate_all=True, read_step_ratio=3, bypass_header="X-Alone")
    options.to_environ(environ)
    assert Options.from_environ(environ) == options
    assert Options.from_environ({}) == Options(False, 1, "X-Cache-Bypass")


def test_without_an_environment_it_is_the_process_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PREFIX + "READ_STEP_RATIO", "4")
    assert Options.from_environ().read_step_ratio == 4


@pytest.mark.parametrize("value", ["-1", "two", ""])
def test_a_ratio_that_cannot_be_used(value: str) -> None:
    with pytest.raises(ValueError, match="READ_STEP_RATIO must be 0 or more, not"):
        Options.from_environ({PREFIX + "READ_STEP_RATIO": value})
