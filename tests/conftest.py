"""The fixtures that every test may ask for; each server starts when the first test wants it."""

import pytest
from hypothesis import settings

# On a busy machine an example may take long: that is no fault of the code.
settings.register_profile("machine", deadline=None)
settings.load_profile("machine")

pytest_plugins = [
    "tests.fixtures.folders",
    "tests.fixtures.postgres",
    "tests.fixtures.kafka",
    "tests.fixtures.opensearch",
    "tests.fixtures.front",
    "tests.fixtures.registry",
    "tests.fixtures.proxy",
    "tests.fixtures.spark",
    "tests.fixtures.lakehouse",
    "tests.fixtures.indexes",
    "tests.fixtures.debezium_topics",
    "tests.fixtures.debezium_lake",
    "tests.fixtures.pipeline",
    "tests.fixtures.refusals",
]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands leave this process's log and garbage collection as they are."""
    monkeypatch.setattr("deploy.commands.console.configure_logging", lambda **_: None)
    monkeypatch.setattr("gc.freeze", lambda: None)
    monkeypatch.setattr("gc.set_threshold", lambda _: None)


@pytest.hookimpl(tryfirst=True)  # xdist looks at the groups in a hook of its own
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let one worker have all tests that share a search server, and others those of Spark.

    But those that name a group of their own.
    """
    for item in items:
        if isinstance(item, pytest.Function) and "opensearch" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group(f"search{item.callspec.params['opensearch']}"))
        elif item.get_closest_marker("spark") and not item.get_closest_marker("xdist_group"):
            group = "debezium" if "debezium" in item.nodeid else "lakehouse"
            item.add_marker(pytest.mark.xdist_group(group))
