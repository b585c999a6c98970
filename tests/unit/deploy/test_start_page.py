"""The configuration that docs/start.md gives a newcomer → it loads, and captures."""

import re
from pathlib import Path
from typing import Final

import pytest

from cdc.settings import load

PAGE: Final = Path(__file__).parents[3] / "docs/start.md"


def test_the_configuration_of_the_page_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_PASSWORD", "secret")
    (text,) = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    file = tmp_path / "millrace.toml"
    file.write_text(text, encoding="utf-8")
    settings = load(file)
    assert settings.capture.topic_prefix == "shop"
    assert settings.require_lakehouse().path == "/data/lakehouse"
