"""The quickstart's configuration is the one that the demo proves."""

import tomllib
from pathlib import Path
from typing import Final

from cdc.settings import load
from deploy.demo.verdict import SEARCH

FILE: Final = Path(__file__).parents[3] / "deploy/containers/quickstart/millrace.toml"


def test_the_quickstart_fills_the_indexes_that_the_demo_compares() -> None:
    search = tomllib.loads(FILE.read_text("utf-8"))["search"]
    assert {name: search[name] for name in SEARCH} == SEARCH
    assert load(FILE).require_lakehouse().path == "/var/lib/millrace/lakehouse"
