r"""A case's SQL scripts → psql sessions that run them, with their directives.

psql decides where a statement ends. ``\warn`` reports that everything before it is done: it uses
stderr, unbuffered and in order.
"""

import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from deploy.local.processes import environment_with

_DIRECTIVE: Final = re.compile(r"^-- @(\w+)(.*)$", re.MULTILINE)
_TIMEOUT_S: Final = 60
_FIRST: Final = "main"


class ScriptError(RuntimeError):
    """A script did something else in PostgreSQL than when it was recorded."""


class Sql:
    """Runs the scripts of one case on its database."""

    def __init__(self, psql: Path, database: Mapping[str, str]) -> None:
        connection = {
            f"PG{name.upper()}": value for name, value in database.items() if name != "dbname"
        }
        self._command = [str(psql), "-X", "-q", "-o", "/dev/null", "-d", database["dbname"]]
        self._environment = environment_with({**connection, "PGCLIENTENCODING": "UTF8"})

    def set_up(self, script: Path) -> None:
        """Run a script that mustn't fail, if there is one."""
        if not script.exists():
            return
        run = subprocess.run(
            [*self._command, "-v", "ON_ERROR_STOP=1", "-f", str(script)],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if run.returncode:
            raise ScriptError(f"{script.name}: {run.stderr.strip()}")

    def change(self, script: Path, drain: Callable[[], None]) -> None:
        """Run a script of changes, if there is one, following its directives."""
        if not script.exists():
            return
        sessions: dict[str, _Session] = {}
        try:
            self._follow(script, sessions, drain)
            errors = [error for session in sessions.values() for error in session.errors]
        finally:
            for session in sessions.values():
                session.close()
        expected = len(re.findall(r"^-- @expect_error", script.read_text("utf-8"), re.MULTILINE))
        if len(errors) != expected:
            raise ScriptError(f"{script.name}: {len(errors)} errors, not {expected}: {errors[:3]}")

    def _follow(
        self, script: Path, sessions: dict[str, "_Session"], drain: Callable[[], None]
    ) -> None:
        name = _FIRST
        for directive, argument, statements in _pieces(script.read_text("utf-8")):
            if directive == "session":
                name = argument
            elif directive == "drain":
                drain()
            elif directive == "sleep":
                time.sleep(float(argument))
            elif directive not in {"", "expect_error"}:
                raise ScriptError(f"{script.name}: no such directive: @{directive}")
            if statements.strip():
                if name not in sessions:
                    sessions[name] = _Session(self._command, self._environment)
                sessions[name].execute(statements)


def _pieces(script: str) -> Iterator[tuple[str, str, str]]:
    """Each directive with its argument and the statements behind it; first those before any."""
    directive = argument = ""
    start = 0
    for match in _DIRECTIVE.finditer(script):
        yield directive, argument, script[start : match.start()]
        directive, argument, start = match[1], match[2].strip(), match.end()
    yield directive, argument, script[start:]


class _Session:
    """One psql, fed piece by piece."""

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        self.errors: list[str] = []
        self._psql = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._pieces = 0

    def execute(self, text: str) -> None:
        """Run statements and wait until the last one is done."""
        assert self._psql.stdin is not None
        assert self._psql.stderr is not None
        self._pieces += 1
        mark = f"golden piece {self._pieces} is done"
        # The semicolon ends a last statement that has none; by itself it does nothing.
        self._psql.stdin.write(f"{text}\n;\n\\warn {mark}\n")
        self._psql.stdin.flush()
        alarm = threading.Timer(_TIMEOUT_S, self._psql.kill)
        alarm.start()
        try:
            for line in self._psql.stderr:
                if line.strip() == mark:
                    return
                if "ERROR:" in line or "FATAL:" in line:
                    self.errors.append(line.strip())
        finally:
            alarm.cancel()
        raise ScriptError(f"psql ended, or a statement took {_TIMEOUT_S} s: {text[:200]}")

    def close(self) -> None:
        """End the session."""
        self._psql.kill()
        self._psql.communicate()
