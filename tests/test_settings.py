"""One truth for the settings: the dataclass, the command line, the environment and docs/settings.md."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from router import serve
from router.cli import main
from router.settings import Settings, SettingsError, flag_name

DOC = Path(__file__).parent.parent / "docs" / "settings.md"


def settings(**values: object) -> Settings:
    return Settings(**{"upstream": "http://127.0.0.1:8000", **values})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"upstream": "127.0.0.1:8000"}, "http://127.0.0.1:8000"),
        ({"upstream": "ftp://x"}, "is not an http:// or https:// URL"),
        ({"upstream": "http://h:99999"}, "Port out of range"),
        ({"upstream": "http://u@h:1"}, "only scheme, host and port"),
        ({"upstream": "http://h:1/v1"}, "only scheme, host and port"),
        ({"read_endpoint": ("h:1",)}, "--read-endpoint"),
        ({"engine_metrics": "metrics"}, "--engine-metrics"),
        ({"bypass_header": "X-Cache-Bypass"}, "'Name: value'"),
        ({"bypass_header": "X Y: 1"}, "'Name: value'"),
        ({"reads_in_flight": 0}, "--reads-in-flight must be at least 1"),
        ({"max_queued_reads": -1}, "--max-queued-reads must be at least 0"),
        ({"read_timeout": 0.0}, "--read-timeout must be above 0"),
        ({"grace": -1.0}, "--grace must be 0 seconds or more"),
        ({"port": 70000}, "--port must be between"),
        ({"port": 9091}, "--port and --admin-port are the same"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_with_a_hint(values: dict[str, object], says: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(says)):
        settings(**values)


def test_the_bypass_header_as_it_goes_on_the_wire() -> None:
    assert settings().bypass == (b"X-Cache-Bypass", b"1")
    assert settings(bypass_header="X-No-Cache:  yes ").bypass == (b"X-No-Cache", b"yes")


def test_reads_go_to_the_upstream_unless_told_otherwise() -> None:
    assert settings().endpoints == ("http://127.0.0.1:8000",)
    assert settings(read_endpoint=("http://a:1", "http://b:2")).endpoints == ("http://a:1", "http://b:2")


def test_the_scrape_url_may_have_a_path() -> None:
    assert settings(engine_metrics="http://h:1/metrics").engine_metrics == "http://h:1/metrics"


def test_every_field_is_an_option_and_the_options_defaults_are_the_fields() -> None:
    params = {param.name: param for param in serve.command.params}
    for field in dataclasses.fields(Settings):
        param = params[field.name]
        if field.default is dataclasses.MISSING:
            assert param.required
        else:
            assert param.default == field.default or (field.default == () and param.multiple)
        assert flag_name(field.name) in param.opts


def test_the_docs_table_has_every_flag_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(--[a-z-]+)[^`]*` \| ([^|]*) \|", DOC.read_text(), flags=re.M))
    for field in dataclasses.fields(Settings):
        assert flag_name(field.name) in rows, f"docs/settings.md lacks {flag_name(field.name)}"
        shown = rows[flag_name(field.name)].strip().strip("`")
        assert shown == default_text(field), f"{flag_name(field.name)}: the docs say {shown!r}"
    assert len(rows) == len(dataclasses.fields(Settings))


def default_text(field: dataclasses.Field[object]) -> str:
    if field.default is dataclasses.MISSING:
        return "required"
    if field.default == ():
        return "the upstream"
    if isinstance(field.default, bool):
        return "off"
    if isinstance(field.default, float):
        return f"{field.default:g}"
    return str(field.default)


def test_help_is_there_for_each_command() -> None:
    runner = CliRunner()
    for command in ("serve", "verify", "engine", "top", "version"):
        result = runner.invoke(main, [command, "--help"])
        assert result.exit_code == 0, result.output
        assert "Usage:" in result.output


def test_more_workers_are_refused_with_the_reason() -> None:
    result = CliRunner().invoke(main, ["serve", "--upstream", "http://127.0.0.1:1", "--workers", "2"])
    assert result.exit_code == 2
    assert "one router beside each engine" in result.output


def test_a_bad_url_says_what_to_type() -> None:
    result = CliRunner().invoke(main, ["serve", "--upstream", "localhost"])
    assert result.exit_code == 2
    assert "type e.g. http://127.0.0.1:8000" in result.output


def test_the_environment_sets_options() -> None:
    result = CliRunner().invoke(main, ["serve"], env={"LOGPROB_ROUTER_SERVE_UPSTREAM": "nonsense"})
    assert "'nonsense'" in result.output
    assert result.exit_code == 2


def test_version() -> None:
    result = CliRunner().invoke(main, ["version"])
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", result.output)
