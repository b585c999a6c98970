"""Names on the command line → the compared parts of each sink."""

from pathlib import Path

import pytest

from cdc.errors import ConfigError
from cdc.settings import Settings, load
from compaction.verify.options import VerifyOptions, compared_names
from sinks.run.summary import SinkName

TEXT = """
[source]
host = "db"
[capture]
topic.prefix = "shop"
[kafka]
bootstrap.servers = "kafka:9092"
[lakehouse]
path = "/lake"
[[views]]
name = "daily"
query = "SELECT 1"
[[views]]
name = "late"
query = "SELECT 1"
[search]
url = "http://localhost:9200"
[[search.documents]]
name = "late"
table = "public.a"
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "millrace.toml").write_text(TEXT)
    return load(tmp_path / "millrace.toml")


@pytest.mark.parametrize(
    ("sinks", "tables", "compared"),
    [
        ((), (), {"lakehouse": None, "views": None, "search": None}),
        (("views",), ("daily",), {"views": {"daily"}}),
        ((), ("daily",), {"views": {"daily"}}),
        (
            (),
            ("public.a", "daily"),
            {"lakehouse": {"public.a"}, "views": {"daily"}, "search": {"public.a"}},
        ),
        (("lakehouse",), ("daily",), {"lakehouse": {"daily"}}),
        (("search",), ("late",), {"lakehouse": {"public.a"}, "search": {"late"}}),
    ],
)
def test_a_name_is_looked_for_in_each_sink_that_may_have_it(
    settings: Settings,
    sinks: tuple[SinkName, ...],
    tables: tuple[str, ...],
    compared: dict[SinkName, set[str] | None],
) -> None:
    """What isn't there is told by the sinks themselves, so no name is dropped."""
    options = VerifyOptions(frozenset(tables), frozenset(sinks))
    assert compared_names(settings, options) == compared


def test_a_view_and_documents_of_one_name_are_both_compared(settings: Settings) -> None:
    names = compared_names(settings, VerifyOptions(frozenset({"late"})))
    assert names["views"] == {"late"}
    assert "late" in (names["search"] or ())


def test_a_view_that_is_not_there_is_refused(settings: Settings) -> None:
    with pytest.raises(ConfigError, match="unknown view: other"):
        compared_names(settings, VerifyOptions(frozenset({"other"}), frozenset({"views"})))
