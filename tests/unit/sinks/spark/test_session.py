"""A missing Spark → one error with the remedy, before any JVM."""

from pathlib import Path

import pytest

from cdc.errors import SparkMissingError
from sinks.spark import session


@pytest.fixture(autouse=True)
def _no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql import SparkSession

    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)


def test_missing_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkMissingError, match="no java"):
        session.open_session({})


def test_missing_jars_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MILLRACE_JARS", str(tmp_path))
    with pytest.raises(SparkMissingError, match="make setup"):
        session.open_session({})


def test_a_collector_that_the_user_has_chosen_stays_the_only_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "-XX:+UseParallelGC" in session.java_options({}, 10)
    assert "GC" not in session.java_options({"spark.driver.defaultJavaOptions": "-XX:+UseZGC"}, 10)
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xmx1g -XX:+UseG1GC")
    assert "GC" not in session.java_options({}, 10**6)


def test_an_installation_without_jars_says_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MILLRACE_JARS", str(tmp_path))
    monkeypatch.setattr("sinks.spark.jars.is_clone", lambda: False)
    with pytest.raises(SparkMissingError, match="→ run millrace jars --repository URL"):
        session.open_session({})


def test_rows_are_made_in_utc_whatever_the_configuration_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class StartedError(Exception):
        """Spark would start."""

    def start(options: dict[str, str]) -> None:
        assert options["spark.sql.session.timeZone"] == "UTC"
        raise StartedError

    monkeypatch.setattr(session, "_start", start)
    with pytest.raises(StartedError):
        session.open_session({"spark.sql.session.timeZone": "America/New_York"})
