"""``millrace init``: a commented configuration file."""

import importlib.resources
from pathlib import Path
from typing import Annotated

import typer

from cdc.errors import ConfigError
from cdc.settings import DEFAULT_PATH


def init(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = DEFAULT_PATH,
    *,
    force: Annotated[bool, typer.Option(help="Overwrite an existing file.")] = False,
) -> None:
    """Write a commented configuration file."""
    if path.exists() and not force:
        raise ConfigError("the file exists", where=str(path), remedy="--force overwrites it")
    text = importlib.resources.files("deploy").joinpath("example.toml").read_text(encoding="utf-8")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"can't write: {error.strerror}", where=str(path)) from None
    print(f"wrote {path}: fill in its sections, then run `millrace run`")
