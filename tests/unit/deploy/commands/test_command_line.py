"""Arguments → the command line's output and files before it needs any server."""

import errno
import os
import signal
import socket
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Final, Never

import pytest
from typer.testing import CliRunner

import millrace
from cdc.capture.daemon import Daemon
from cdc.capture.slot_lease import StoppedError
from cdc.errors import ConfigError, ExitCode, SourceUnreachableError
from cdc.settings import Settings, load
from deploy.commands.app import COMMANDS, app
from tests.fixtures.few import few

EXTRAS = ("pyspark", "delta", "opensearchpy", "fastavro", "confluent_kafka.schema_registry")
"""What a machine without the extras spark, search and avro lacks."""
NOWHERE = """
    source = { host = "127.0.0.1", port = 1, user = "u", dbname = "d" }
    capture = { "topic.prefix" = "t" }
    kafka = { "bootstrap.servers" = "127.0.0.1:1" }
"""
LACKING = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS})); import millrace"


def python(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh interpreter, where nothing is imported yet."""
    return subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False
    )


def test_version_is_the_packages() -> None:
    ended = CliRunner().invoke(app, ["--version"])
    assert ended.exit_code == 0
    assert ended.output == f"millrace {millrace.__version__}\n"


def test_importing_millrace_imports_neither_the_command_line_nor_the_settings() -> None:
    ended = python("import millrace, sys; print(*sys.modules)")
    assert not {"typer", "pydantic", "deploy"} & set(ended.stdout.split()), ended.stderr


def test_a_command_line_without_the_extras_shows_the_help_of_every_command() -> None:
    ended = python(f"{LACKING}; millrace.main()", "--help")
    assert ended.returncode == ExitCode.OK, ended.stderr
    listed = ended.stdout.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in listed] == list(COMMANDS)
    assert all(len(line.split()) > 1 for line in listed), "a command has no help"


def test_the_help_loads_no_command() -> None:
    at_exit = "import atexit, sys; atexit.register(lambda: print(*sys.modules))"
    ended = python(f"{at_exit}; import millrace; millrace.main()", "--help")
    loaded = set(ended.stdout.splitlines()[-1].split())
    assert "deploy.commands.app" in loaded, ended.stderr
    assert not {"pydantic", "psycopg", "confluent_kafka", "structlog"} & loaded


def test_every_command_shows_its_own_help_without_the_extras() -> None:
    runner = "from typer.testing import CliRunner; from deploy.commands.app import COMMANDS, app"
    show = (
        "[CliRunner().invoke(app, [name, '--help'], catch_exceptions=False) for name in COMMANDS]"
    )
    ended = python(f"{LACKING}; {runner}; print(*(shown.exit_code for shown in {show}))")
    assert set(ended.stdout.split()) == {"0"}, ended.stderr


def test_cuts_are_listed_where_there_is_no_spark(tmp_path: Path) -> None:
    """`millrace status` lists them, too: on the daemon's machine."""
    path = tmp_path / "millrace.toml"
    path.write_text(f'{NOWHERE}\nlakehouse = {{ path = "{tmp_path}" }}')
    ended = python(f"{LACKING}; millrace.main()", "cuts", "--json", "--config", str(path))
    assert (ended.returncode, ended.stdout) == (ExitCode.OK, "[]\n"), ended.stderr


@pytest.mark.parametrize("what", ["lakehouse", "search"])
def test_what_there_is_not_is_kept_small_without_its_packages(tmp_path: Path, what: str) -> None:
    path = tmp_path / "millrace.toml"
    path.write_text(NOWHERE)
    ended = python(f"{LACKING}; millrace.main()", "compact", what, "--config", str(path))
    assert (ended.returncode, ended.stdout) == (ExitCode.OK, ""), ended.stderr


@pytest.mark.parametrize(
    ("words", "extra"), [(("merge",), "spark"), (("search", "i", "q"), "search")]
)
def test_a_package_that_is_missing_is_named_with_what_brings_it(
    tmp_path: Path, words: tuple[str, ...], extra: str
) -> None:
    path = tmp_path / "millrace.toml"
    search = 'search = { url = "http://127.0.0.1:1" }'
    path.write_text(f'{NOWHERE}\nlakehouse = {{ path = "{tmp_path}" }}\n{search}')
    ended = python(f"{LACKING}; millrace.main()", *words, "--config", str(path))
    assert ended.returncode == ExitCode.SPARK_MISSING, ended.stderr
    assert f"millrace[{extra}]" in ended.stderr
    assert "internal error" not in ended.stderr


@pytest.mark.parametrize("writer", ["millrace", "debezium"])
def test_a_merge_of_json_needs_no_avro(tmp_path: Path, writer: str) -> None:
    path = tmp_path / "millrace.toml"
    lakehouse = f'{{ path = "{tmp_path}", topics_written_by = "{writer}" }}'
    path.write_text(f"{NOWHERE}\nlakehouse = {lakehouse}")
    spark = "sys.modules.pop('pyspark'); sys.modules.pop('delta')"
    words = ("merge", "lakehouse", "--interval", "never", "--config", str(path))
    ended = python(f"{LACKING}; {spark}; millrace.main()", *words)
    assert ended.returncode == ExitCode.CONFIG, ended.stderr
    assert "never isn't a duration" in ended.stderr


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "words",
    [
        "run",
        "new-epoch",
        "new-epoch --yes",
        "snapshot",
        "snapshot public.t --dry-run",
        "drop",
        "drop --yes --topics",
        "dead-letters replay --all",
        "dead-letters discard --all",
    ],
)
def test_where_a_real_debezium_captures_no_command_touches_what_is_its(
    tmp_path: Path, words: str
) -> None:
    path = tmp_path / "millrace.toml"
    lakehouse = f'{{ path = "{tmp_path}", topics_written_by = "debezium" }}'
    path.write_text(f"{NOWHERE}\nlakehouse = {lakehouse}")
    ended = CliRunner().invoke(app, [*words.split(), "--config", str(path)])
    assert isinstance(ended.exception, ConfigError)
    assert ended.exception.exit_code == ExitCode.CONFIG
    assert "a real Debezium captures the source" in str(ended.exception)


def test_a_mistyped_command_is_answered_with_the_nearest_one() -> None:
    ended = CliRunner().invoke(app, ["statu"])
    assert ended.exit_code == ExitCode.CONFIG
    assert "Did you mean 'status'?" in ended.output


def test_init_writes_a_configuration_that_loads_and_keeps_one_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "millrace.toml"
    assert CliRunner().invoke(app, ["init", str(path)]).exit_code == 0
    monkeypatch.setenv("MILLRACE_PASSWORD", "secret")
    assert load(path).capture.topic_prefix
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("changed = 1\n")
    path.chmod(0o644)
    again = CliRunner().invoke(app, ["init", str(path)])
    assert isinstance(again.exception, ConfigError)
    assert path.read_text() == "changed = 1\n"


def test_init_replaces_a_file_whole_or_not_at_all_and_keeps_its_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Never:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "millrace.toml"
    path.write_text("changed = 1\n")
    path.chmod(0o640)
    with monkeypatch.context() as full:
        full.setattr(os, "fchmod", fail)
        ended = CliRunner().invoke(app, ["init", "--force", str(path)])
        assert "No space left on device" in str(ended.exception)
    assert path.read_text() == "changed = 1\n"
    assert list(tmp_path.iterdir()) == [path]
    assert CliRunner().invoke(app, ["init", "--force", str(path)]).exit_code == 0
    assert "changed" not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_init_follows_no_link_and_takes_no_devices_place(tmp_path: Path) -> None:
    path, link = tmp_path / "other.toml", tmp_path / "millrace.toml"
    path.write_text("changed = 1\n")
    link.symlink_to(path)
    ended = CliRunner().invoke(app, ["init", "--force", str(link)])
    assert isinstance(ended.exception, ConfigError)
    assert "give the path of a regular file" in str(ended.exception)
    assert path.read_text() == "changed = 1\n"


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "words", ["--reset", "--where x", "t --reset --resume", "public.t --where x --reset"]
)
def test_snapshot_options_that_contradict_each_other_are_refused(
    tmp_path: Path, words: str
) -> None:
    path = tmp_path / "millrace.toml"
    path.write_text(NOWHERE)
    ended = CliRunner().invoke(app, ["snapshot", *words.split(), "--config", str(path)])
    assert isinstance(ended.exception, ConfigError)
    assert "--where and --reset" in str(ended.exception)


@pytest.mark.usefixtures("here")
def test_more_tables_than_a_daemon_takes_at_once_are_refused_before_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "millrace.toml"
    path.write_text(NOWHERE)
    monkeypatch.setattr("deploy.commands.snapshot.is_captured", lambda _: True)
    names = [f"public.t{number}" for number in range(1_001)]
    ended = CliRunner().invoke(app, ["snapshot", *names, "--config", str(path)])
    assert isinstance(ended.exception, ConfigError)
    assert "accepts at most 1,000 tables at once, not 1,001" in str(ended.exception)


@pytest.mark.usefixtures("here")
def test_only_the_daemon_takes_the_port_where_it_answers_for_its_health(tmp_path: Path) -> None:
    path = tmp_path / "millrace.toml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path.write_text(f'{NOWHERE}\nhealth = {{ listen = "127.0.0.1:{port}" }}')
        ended = {
            words: CliRunner().invoke(app, [*words.split(), "--config", str(path)]).exception
            for words in ("run", "new-epoch", "new-epoch --yes", "snapshot")
        }
    assert isinstance(ended.pop("run"), ConfigError)
    assert {type(error) for error in ended.values()} == {SourceUnreachableError}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("words", "method", "code"),
    [
        ("run", "run", ExitCode.OK),
        ("new-epoch --yes", "begin_epoch", ExitCode.INTERRUPTED),
        ("snapshot", "snapshot", ExitCode.INTERRUPTED),
    ],
)
def test_what_is_told_to_stop_while_it_waits_says_nothing_of_a_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, method: str, code: ExitCode
) -> None:
    def wait(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise StoppedError

    path = tmp_path / "millrace.toml"
    path.write_text(NOWHERE)
    monkeypatch.setattr(Daemon, method, wait)
    monkeypatch.setattr("deploy.commands.snapshot.is_captured", lambda _: False)
    ended = CliRunner().invoke(app, [*words.split(), "--config", str(path)])
    assert (ended.exit_code, ended.stdout) == (code, "")


def test_output_that_cant_be_written_is_told_and_a_reader_that_has_enough_isnt() -> None:
    root = Path(__file__).resolve().parents[4]
    words = [sys.executable, "-m", "millrace", "--help"]
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        ended = subprocess.run(
            words, cwd=root, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert ended.returncode == ExitCode.DISK
    assert ended.stderr == (
        "millrace: can't write a file: No space left on device\n  → free some space\n"
    )
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        words, cwd=root, stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert ended.stderr == ""


@pytest.mark.parametrize(
    ("command", "code", "complaint"),
    [
        ("print('a row'); raise LogForgottenError('too late')", ExitCode.LOG_FORGOTTEN, "too late"),
        ("print('a row'); sys.exit(33)", ExitCode.LOG_FORGOTTEN, ""),
        ("print_line('applied'); sys.exit(0)", ExitCode.OK, ""),
        ("print_line('applied'); print('a row'); sys.exit(0)", ExitCode.DISK, "No space left"),
    ],
    ids=["error", "code", "report", "result"],
)
def test_output_that_is_lost_replaces_no_commands_own_end(
    command: str, code: int, complaint: str
) -> None:
    """A report that is lost is none; what was asked for is."""
    program = f"""
import sys
import millrace
from cdc.errors import LogForgottenError
from deploy.commands import app
from deploy.commands.printing import print_line

def command(**_):
    {command}

app.app = command
millrace.main()
"""
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        ended = subprocess.run(
            [sys.executable, "-c", program],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
        )
    told = ended.stderr.decode()
    assert ended.returncode == code, told
    assert complaint in told
    assert bool(told) == bool(complaint)


LOST: Final = ["2>/dev/full", "2>&-", "2>&1 >&-", "<&- 2>&- >&-"]
AWAY: Final = ExitCode.SOURCE_UNREACHABLE
ENDS: Final = {"cuts --json": ExitCode.OK, "snapshot": AWAY, "run": AWAY, "dorp": ExitCode.CONFIG}
CASES: Final = [*product(ENDS, LOST)]


@pytest.mark.parametrize("case", few(CASES, *CASES[::5]))
def test_warnings_and_errors_that_cant_be_written_change_nothing(
    case: tuple[str, str], tmp_path: Path
) -> None:
    words, stream = case
    path = tmp_path / "millrace.toml"
    warned = 'search = { url = "http://search.invalid" }'
    path.write_text(f'{NOWHERE}\nlakehouse = {{ path = "{tmp_path}" }}\n{warned}')
    program = f"{sys.executable} -m millrace {words} --config {path} {stream}"
    root = Path(__file__).resolve().parents[4]
    ended = subprocess.run(["/bin/sh", "-c", program], cwd=root, capture_output=True, check=False)
    assert ended.returncode == ENDS[words]
    is_result = words == "cuts --json" and ">&-" not in stream.replace("2>&-", "")
    if "2>&1" not in stream:
        assert (ended.stdout, ended.stderr) == (b"[]\n" if is_result else b"", b"")


def test_a_closed_terminal_is_no_disk_that_fails() -> None:
    leader, terminal = os.openpty()
    words = [sys.executable, "-c", "import sys; sys.stdin.read(); import millrace; millrace.main()"]
    with subprocess.Popen(
        [*words, "--version"], stdin=subprocess.PIPE, stdout=terminal, stderr=subprocess.PIPE
    ) as command:
        os.close(terminal)
        os.close(leader)
        _, complaints = command.communicate()
    assert (command.returncode, complaints) == (ExitCode.INTERRUPTED, b"")


@pytest.mark.parametrize(
    "command",
    [
        *("run", "snapshot", "snapshot --dry-run a.b", "new-epoch", "status", "drop"),
        *("merge lakehouse", "compact topics", "rebuild search", "search a.b c"),
        *("dead-letters list", "dead-letters show 1", "dead-letters replay 1"),
        *("dead-letters discard 1", "dead-letters search"),
    ],
)
def test_every_command_that_connects_looks_first_at_what_others_on_the_network_can_read(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(_settings: Settings) -> None:
        raise ConfigError("it looks")

    path = tmp_path / "millrace.toml"
    path.write_text(NOWHERE)
    monkeypatch.setattr(Settings, "exposures", property(look))
    ended = CliRunner().invoke(app, [*command.split(), "--config", str(path)])
    assert str(ended.exception) == "it looks"


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("command", ["run", "drop"])
def test_plain_text_over_a_network_is_told_on_standard_error_before_anything_is_sent(
    tmp_path: Path, command: str
) -> None:
    path = tmp_path / "millrace.toml"
    path.write_text(NOWHERE + 'search = { url = "http://u:hunter2@search.invalid" }')
    ended = python("import millrace; millrace.main()", command, "--config", str(path))
    warning, _, error = ended.stderr.partition(" (127.0.0.1:1/d)")
    assert "[search]" in warning
    assert "sends the password and documents to search.invalid in plain text" in warning
    assert "use https://" in warning
    assert "hunter2" not in ended.stderr
    assert "→" in error
    assert ended.returncode == ExitCode.SOURCE_UNREACHABLE
