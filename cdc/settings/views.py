"""[[views]] → the views, and the SQL text of each."""

import re
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field, model_validator

from cdc.errors import ConfigError
from cdc.settings.kinds import Section

VIEWS: Final = "views"
"""The views' folder in the lakehouse, and their schema in SQL."""
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,127}")


def history_name(view: str) -> str:
    """Return the name of the Delta table with all versions of a view's rows."""
    return f"{view}_history"


def _view_name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(
            f"{text!r} can't name a view: use up to 128 of a-z, 0-9 and _, beginning with a letter"
        )
    return text


class View(Section):
    """A SELECT in Spark SQL over derived tables and other views, kept in ``views/<name>``.

    Its text is in ``query`` or in a ``file``. With a ``history``, a second table has all versions
    of its rows: ``views/<name>_history``.
    """

    name: Annotated[str, AfterValidator(_view_name)]
    query: str | None = Field(None, pattern=r"\S")
    file: Path | None = None
    history: bool = False

    @model_validator(mode="after")
    def _has_text(self) -> Self:
        if (self.query is None) == (self.file is None):
            raise ValueError(f"{self.name}: set either query or file")
        return self

    @property
    def tables(self) -> tuple[str, ...]:
        """Return the names of its Delta tables, in the folder of views."""
        return (self.name, history_name(self.name)) if self.history else (self.name,)

    @property
    def where(self) -> str:
        """Return its place in the configuration, for messages."""
        return f"[[views]] {self.name}"

    def sql(self) -> str:
        """Return its SELECT. Raise ConfigError if its file can't be read, or is empty."""
        if self.file is None:
            return self.query or ""
        remedy = "let the user of merges read it; a relative path begins in the current directory"
        try:
            text = self.file.read_text(encoding="utf-8")
        except OSError as error:
            what = f"can't read its file {self.file}: {error.strerror}"
            raise ConfigError(what, where=self.where, remedy=remedy) from None
        except UnicodeDecodeError:
            what = f"its file {self.file} isn't UTF-8"
            raise ConfigError(what, where=self.where, remedy="save it as UTF-8") from None
        if not text.strip():
            what = f"its file {self.file} is empty"
            raise ConfigError(what, where=self.where, remedy="write a SELECT into it")
        return text
