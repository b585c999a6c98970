"""The exit codes of docs/errors.md → what the systemd unit doesn't start again."""

import re
from pathlib import Path
from typing import Final

from cdc.errors import ExitCode

ROOT: Final = Path(__file__).parents[3]
SECTION: Final = (
    (ROOT / "docs/errors.md").read_text().partition("## What a supervisor should start again\n")[2]
)
OTHER_COMMANDS: Final = {
    ExitCode.OK,
    ExitCode.NOTHING_TO_DO,
    ExitCode.BUSY,
    ExitCode.SINK,
    ExitCode.SINK_UNREACHABLE,
    ExitCode.LOG_FORGOTTEN,
    ExitCode.REBUILT,
    ExitCode.MEMORY,
    ExitCode.LOG_MISSING,
    ExitCode.INTERRUPTED,
}
"""Codes that the daemon doesn't end with, but for the first one."""


def codes(text: str) -> set[int]:
    return set(map(int, re.findall(r"\d+", text)))


def test_the_unit_leaves_stopped_what_a_person_has_to_mend_as_docs_say() -> None:
    again, _, person = SECTION.partition(" the daemon is worth another start")
    unit = (ROOT / "deploy/systemd/millrace.service").read_text()
    (prevented,) = re.findall(r"^RestartPreventExitStatus=(.*)$", unit, re.MULTILINE)
    assert codes(prevented) == codes(person)
    assert codes(again) | codes(person) == set(ExitCode) - OTHER_COMMANDS
    assert not codes(again) & codes(person)
