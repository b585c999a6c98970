"""The fixtures that every test may use; each server starts when the first test needs it."""

import gc
import os
import subprocess
from typing import Final

import pytest
from hypothesis import settings

from deploy.local.jars import REPOSITORY, Component, is_fetched
from tests.fixtures.examples import examples

# On a busy machine an example may take long: that is no fault of the code.
settings.register_profile("machine", deadline=None, max_examples=examples(100))
settings.load_profile("machine")

pytest_plugins = [
    "tests.fixtures.containers",
    "tests.fixtures.folders",
    "tests.fixtures.postgres",
    "tests.fixtures.topics",
    "tests.fixtures.kafka",
    "tests.fixtures.brokers",
    "tests.fixtures.opensearch",
    "tests.fixtures.front",
    "tests.fixtures.registry",
    "tests.fixtures.proxy",
    "tests.fixtures.spark",
    "tests.fixtures.lakehouse",
    "tests.fixtures.hand_views",
    "tests.fixtures.indexes",
    "tests.fixtures.debezium_topics",
    "tests.fixtures.debezium_lake",
    "tests.fixtures.pipeline",
    "tests.fixtures.command_line",
    "tests.fixtures.images",
    "tests.fixtures.refusals",
]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands leave this process's log and garbage collection as they are."""
    monkeypatch.setattr("deploy.commands.console.configure_logging", lambda **_: None)
    monkeypatch.setattr("gc.freeze", lambda: None)
    monkeypatch.setattr("gc.set_threshold", lambda _: None)


SERVERS: Final = {"postgres", "kafka", "opensearch", "registry", "spark"}
"""Fixtures, and markers of tests that start such servers by themselves."""
UNIT: Final = REPOSITORY / "tests" / "unit"
SECOND: Final = tuple(
    REPOSITORY / "tests" / folder
    for folder in (
        "ddl_chaos",
        "integration/compaction",
        "integration/sinks/debezium",
        "integration/sinks/log",
        "integration/sinks/run",
        "integration/sinks/views",
        "properties/sinks",
    )
)
"""Folders whose tests of Spark take about as long as all the other ones."""


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their markers, and xdist groups them
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that need a server, and let one worker have those that share a dear one.

    Tests of Spark are two workers', each with a JVM, which takes the time of many tests until its
    code is compiled; but for those that name a group of their own (``jvms``: each starts its own
    Spark). One of the two has the search server, too. Both take longest, so they begin first.
    """
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if SERVERS & (fixtures | {marker.name for marker in item.iter_markers()}):
            item.add_marker(pytest.mark.server)
            if UNIT in item.path.parents:
                raise pytest.UsageError(f"{item.nodeid} needs a server: tests/unit is for others")
        needs_search = "opensearch" in fixtures
        is_of_spark = needs_search or item.get_closest_marker("spark")
        if is_of_spark and not item.get_closest_marker("xdist_group"):
            is_second = not needs_search and any(folder in item.path.parents for folder in SECOND)
            item.add_marker(pytest.mark.xdist_group("spark-second" if is_second else "spark"))
        elif item.get_closest_marker("stops_kafka"):
            item.add_marker(pytest.mark.xdist_group("stops-kafka"))
    items.sort(key=lambda item: not _is_of_a_large_group(item))


def _is_of_a_large_group(item: pytest.Item) -> bool:
    group = item.get_closest_marker("xdist_group")
    return group is not None and group.args[0].startswith("spark")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fetch what setup leaves out, and these tests need: the schema registry, OpenSearch 3.

    Workers find it there: whoever starts them has fetched it.
    """
    gc.freeze()  # thousands of tests stay to the end: no collection has to look at them again
    if "PYTEST_XDIST_WORKER" in os.environ or session.config.option.collectonly:
        return
    fixtures = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    wanted: set[Component] = {"registry"} if "registry" in fixtures else set()
    if "opensearch" in fixtures and "3" in os.environ.get("OPENSEARCH", "").split():
        wanted.add("opensearch3")
    if "postgres" in fixtures and "POSTGRES" in os.environ:
        wanted.add("postgres")
    missing = sorted(name for name in wanted if not is_fetched(name))
    if missing:
        subprocess.run(["make", "--silent", *missing], cwd=REPOSITORY, check=True)
