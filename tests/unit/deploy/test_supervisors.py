"""The exit codes of docs/reference/errors.md → those without a restart in the systemd unit."""

import re
from pathlib import Path
from typing import Final

import pytest

from cdc.errors import ExitCode

ROOT: Final = Path(__file__).parents[3]
PAGE: Final = (ROOT / "docs/reference/errors.md").read_text()
SECTION: Final = PAGE.partition("## What a supervisor should start again\n")[2]
OTHER_COMMANDS: Final = {
    ExitCode.OK,
    ExitCode.NOTHING_TO_DO,
    ExitCode.BUSY,
    ExitCode.SINK,
    ExitCode.SINK_UNREACHABLE,
    ExitCode.LOG_FORGOTTEN,
    ExitCode.REBUILT,
    ExitCode.CHECK_FAILED,
    ExitCode.NOT_SHOWN,
    ExitCode.MEMORY,
    ExitCode.LOG_MISSING,
    ExitCode.DIFFERS,
    ExitCode.NOT_COMPARED,
    ExitCode.NOT_REPAIRED,
    ExitCode.INTERRUPTED,
}
"""Codes that the daemon doesn't end with, but for the first one."""


UNITS: Final = {path.name: path.read_text() for path in (ROOT / "deploy/systemd").iterdir()}


def codes(text: str) -> set[int]:
    return set(map(int, re.findall(r"\d+", text)))


def setting(unit: str, name: str) -> str:
    """The one line of a unit that sets this."""
    (value,) = re.findall(rf"^{name}=(.*)$", UNITS[unit], re.MULTILINE)
    return str(value)


def successes(unit: str) -> set[int]:
    """The codes that a unit takes for a success, if any."""
    return codes("".join(re.findall(r"^SuccessExitStatus=(.*)$", UNITS[unit], re.MULTILINE)))


def test_the_unit_leaves_stopped_what_a_person_has_to_mend_as_docs_say() -> None:
    of_daemon, _, of_merges = SECTION.partition("\n\n")
    again, _, person = of_daemon.partition(" the daemon is worth another start")
    assert codes(setting("millrace.service", "RestartPreventExitStatus")) == codes(person)
    prevented = codes(setting("millrace-follow.service", "RestartPreventExitStatus"))
    assert prevented == codes(of_merges.partition("; after")[2].partition("a person")[0])
    assert codes(again) | codes(person) == set(ExitCode) - OTHER_COMMANDS
    assert not codes(again) & codes(person)


def test_what_is_worth_another_start_is_no_success() -> None:
    of_daemon, _, of_merges = SECTION.partition("\n\n")
    again = codes(of_daemon.partition(" the daemon is worth another start")[0])
    jvm_ended = codes(of_merges.partition("has ended (")[2].partition(")")[0])
    assert jvm_ended == {ExitCode.SINK_UNREACHABLE, ExitCode.MEMORY, ExitCode.INTERRUPTED}
    assert not successes("millrace.service") & again
    assert not successes("millrace-follow.service") & jvm_ended


@pytest.mark.parametrize("name", ["merge", "compact"])
def test_a_run_with_nothing_to_do_or_beside_another_is_no_failure(name: str) -> None:
    told = codes(setting(f"millrace-{name}.service", "SuccessExitStatus"))
    assert told == {ExitCode.NOTHING_TO_DO, ExitCode.BUSY}
    assert f"millrace-{name}.timer" in UNITS
    wrapper = (ROOT / "deploy/cron/millrace-job").read_text()
    (quiet,) = re.findall(r"^    (.*)\) exit 0 ;;$", wrapper, re.MULTILINE)
    assert codes(quiet) == told | {ExitCode.OK}


def test_all_services_are_hardened_alike() -> None:
    shared = re.compile(
        r"^Environment=.*^SystemCallArchitectures=native$", re.MULTILINE | re.DOTALL
    )
    services = [text for name, text in UNITS.items() if name.endswith(".service")]
    assert len(services) == 4
    folder = "TMPDIR=/var/lib/millrace/tmp\n"
    assert all(f"\nEnvironment={folder}" in text for text in services)
    assert f"\nexport {folder}" in (ROOT / "deploy/cron/millrace-job").read_text()
    assert len({"".join(shared.findall(text)) for text in services} - {""}) == 1
