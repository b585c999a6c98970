"""[lakehouse] → derived tables: those that can't coexist are refused before a run."""

import pytest
from pydantic import ValidationError

from cdc.errors import ConfigError, SinkError
from cdc.settings.lakehouse import DerivedTable, LakehouseSettings
from sinks.changes.derived import derived_tables
from sinks.run.summary import RunSummary, TableResult


def lakehouse(**more: object) -> LakehouseSettings:
    return LakehouseSettings.model_validate({"path": "/lake", **more})


def test_no_two_are_in_one_folder() -> None:
    settings = lakehouse(
        tables=[{"source": "public.a", "kind": "history", "path": "/lake/public/b/"}]
    )
    with pytest.raises(ConfigError, match=r"public\.b and public\.a_history would both be in"):
        derived_tables(settings, ["public.a", "public.b"])


def test_a_source_counts_once() -> None:
    assert [*derived_tables(lakehouse(), ["public.a", "public.a"])] == ["public.a"]


def test_a_name_without_a_schema_is_told_as_such() -> None:
    with pytest.raises(ValidationError, match=r"'same' has no schema: write"):
        DerivedTable.model_validate({"source": "public.a", "name": "same"})


def test_a_table_that_is_applied_twice_in_a_run_counts_as_it_ended() -> None:
    error = SinkError("it failed")
    tables = [
        TableResult("a", 2, 2, error=error),
        TableResult("b", 1, error=error),
        TableResult("a", 1, 1),
        TableResult("b", 1, error=error),
    ]
    line = RunSummary("lakehouse", 2, "0/14", 1.0, tables).line()
    assert "run 2 to 0/14: 1 of 2 tables" in line
    assert line.endswith("; FAILED: b")


def test_a_run_says_how_many_others_it_has_kept_out() -> None:
    line = RunSummary("lakehouse", 2, "0/14", 412.0, [TableResult("a", 1, 1)], kept_out=1).line()
    assert line.endswith(" in 412.0 s; 1 run couldn't start meanwhile")
