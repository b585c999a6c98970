"""The settings of Spark that views don't take from [spark]."""

import pytest

from sinks.views.pinned import changes_answers


@pytest.mark.parametrize(
    "setting",
    ["timestampType", "mapKeyDedupPolicy", "decimalOperations.allowPrecisionLoss", "legacy.x"],
)
def test_a_setting_that_changes_answers_isnt_taken_over(setting: str) -> None:
    assert changes_answers(f"spark.sql.{setting}")


@pytest.mark.parametrize(
    "setting",
    [
        "spark.sql.shuffle.partitions",
        "spark.sql.catalog.spark_catalog",
        "spark.sql.adaptive.enabled",
        "spark.driver.memory",
    ],
)
def test_a_setting_by_which_spark_is_tuned_is_taken_over(setting: str) -> None:
    assert not changes_answers(setting)
