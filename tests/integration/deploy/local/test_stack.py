"""The stack: all servers side by side, and none left after an error."""

from pathlib import Path

import pytest

from deploy.local.postgres import Postgres
from deploy.local.processes import ServerError
from deploy.local.stack import KeptProcess, Stack, main

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.opensearch,
    pytest.mark.native("it is about the stack of native servers"),
]


def processes(stack: Stack) -> list[KeptProcess]:
    return [
        KeptProcess.of(server.name, server.process.pid)
        for server in stack.servers
        if server.process is not None
    ]


@pytest.mark.proof
def test_servers_start_together_and_none_is_left() -> None:
    with Stack() as stack:
        running = processes(stack)
        assert len(running) == 3
        assert stack.folder.exists()
    assert not any(process.running for process in running)
    assert not stack.folder.exists()


@pytest.mark.proof
def test_one_server_that_fails_takes_the_others_with_it(server_folder: Path) -> None:
    stack = Stack(server_folder, postgres_settings={"no_such_setting": "1"})
    with pytest.raises(ServerError, match="no_such_setting"):
        stack.start()
    assert not any(server.process and server.process.running for server in stack.servers)
    assert server_folder.exists()


def test_interrupt_while_starting_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_server: Postgres) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Postgres, "start", interrupted)
    stack = Stack()
    with pytest.raises(KeyboardInterrupt):
        stack.start()
    assert not any(server.process and server.process.running for server in stack.servers)
    assert not stack.folder.exists()


@pytest.mark.proof
def test_kept_stack_is_ended_by_the_command(tmp_path: Path) -> None:
    file = tmp_path / "stack.json"
    with Stack(keep=True, state_file=file) as stack:
        running = processes(stack)
    assert all(process.running for process in running)
    with pytest.raises(ServerError, match="make stop"):
        Stack(keep=True, state_file=file)
    assert main(["stop"], file) == 0
    assert not any(process.running for process in running)
    assert not file.exists()
    assert not stack.folder.exists()
