"""The fixtures that every test may ask for; each server starts when the first test wants it."""

pytest_plugins = [
    "tests.fixtures.folders",
    "tests.fixtures.postgres",
    "tests.fixtures.kafka",
    "tests.fixtures.opensearch",
    "tests.fixtures.proxy",
    "tests.fixtures.spark",
    "tests.fixtures.pipeline",
    "tests.fixtures.refusals",
]
