"""Views and tables in a lakehouse → whether each view equals Spark's result of its query."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdc.settings import Settings
from sinks.views.pinned import pinned
from tests.fixtures.spark import stored_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def assert_equal(settings: Settings, spark: "SparkSession") -> None:
    """Each view has the rows of its query over the tables, and the views before it."""
    lake = Path(settings.require_lakehouse().path)
    own = pinned(spark)
    for folder in (lake / "public").iterdir():
        stored_rows(own, folder).createOrReplaceTempView(folder.name)
    for view in settings.views:
        stored = stored_rows(own, lake / "views" / view.name)
        shown = stored.select(*(f"`{c}`" for c in stored.columns if not c.startswith("_millrace")))
        shown.createOrReplaceTempView(view.name)
        assert bag(shown) == bag(own.sql(view.sql())), view.name


def bag(rows: "DataFrame") -> list[tuple[Any, ...]]:
    """Rows in an order."""
    return sorted((tuple(row) for row in rows.collect()), key=repr)
