from __future__ import annotations

import pytest

from router.engines.freetoken.options import PREFIX, Options
from router.engines.headers import header_name


def test_options_travel_in_the_environment() -> None:
    environ: dict[str, str] = {}
    options = Options(isolate_all=True, decode_yield=3, bypass_header="X-Alone")
    options.to_environ(environ)
    assert Options.from_environ(environ) == options


def test_the_defaults() -> None:
    assert Options.from_environ({}) == Options(isolate_all=False, decode_yield=1, bypass_header="X-Cache-Bypass")


def test_a_number_that_is_none() -> None:
    with pytest.raises(ValueError, match="READ_DECODE_YIELD must be 0 or more"):
        Options.from_environ({PREFIX + "READ_DECODE_YIELD": "-1"})


@pytest.mark.parametrize(("header", "isolated"), [("1", True), ("please", True), ("0", False), ("off", False)])
def test_the_header_decides(header: str, isolated: bool) -> None:
    for isolate_all in (False, True):
        assert Options(isolate_all=isolate_all).isolates(header) is isolated


def test_without_the_header_the_flag_decides() -> None:
    assert Options(isolate_all=True).isolates(None)
    assert not Options().isolates(None)


def test_the_routers_spelling_of_the_header() -> None:
    assert header_name("X-Cache-Bypass: 1") == header_name(" X-Cache-Bypass ") == "X-Cache-Bypass"
    with pytest.raises(ValueError, match="not a header name"):
        header_name(": 1")
