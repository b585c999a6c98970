"""The examples of docs/reference/formats.md are valid."""

import re
from pathlib import Path

import pytest

from cdc.convert.converters import converters
from cdc.settings import load
from cdc.transforms.chain import chain

REQUIRED = """
[source]
[capture]
topic.prefix = "shop"
[kafka]
bootstrap.servers = "nowhere"
"""
PAGE = Path(__file__).parents[4] / "docs/reference/formats.md"
EXAMPLES = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.parametrize("preset", ["millrace", "debezium"])
def test_an_example_is_valid(
    example: str, preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGISTRY_PASSWORD", "secret")
    text = re.sub(r".*ca\.location.*\n", "", example)  # a file that isn't on every machine
    file = tmp_path / "millrace.toml"
    file.write_text(f'preset = "{preset}"\n{REQUIRED}\n{text}', encoding="utf-8")
    settings = load(file)
    converters(settings.format, preset=preset == "debezium")
    lossless = settings.capture.lossless
    chain(settings.transforms, settings.predicates, lossless=lossless)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 5
