"""A Maven repository → the folder from which merges take jars, checked."""

import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cdc.errors import BusyError, ConfigError, SparkMissingError
from sinks.spark import maven
from sinks.spark.jars import Jar, Manifest

CONTENT = {name: name.encode() * 100_000 for name in ("delta", "kafka", "pool")}
JARS = tuple(Jar("org.some", name, "1.0", sha256(CONTENT[name]).hexdigest()) for name in CONTENT)
FOLDER = "spark-0123456789ab"


@dataclass(slots=True)
class Repository:
    """What a server has, and notes."""

    files: dict[str, bytes]
    url: str = ""
    password: str = ""
    lost: int = 0
    """So many bytes at each file's end don't arrive."""
    asked: list[str] = field(default_factory=list)


def handler(repository: Repository) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            repository.asked.append(self.path)
            password = repository.password
            if password and self.headers.get("Authorization") != password:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="jars"')
                self.end_headers()
            elif (content := repository.files.get(self.path)) is None:
                self.send_error(404)
            else:
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: len(content) - repository.lost])

        def log_message(self, *_: object) -> None: ...

    return Handler


@pytest.fixture
def repository() -> Iterator[Repository]:
    made = Repository({f"/maven/{jar.path}": CONTENT[jar.artifact] for jar in JARS})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(made))
    made.url = f"http://127.0.0.1:{server.server_port}/maven"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where jars go."""
    monkeypatch.setenv("MILLRACE_JARS", str(tmp_path / "jars"))
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    listed = Manifest(FOLDER, JARS)
    monkeypatch.setattr(maven, "manifest", lambda: listed)
    monkeypatch.setattr("sinks.spark.jars.manifest", lambda: listed)
    return tmp_path / "jars"


def fetch(repository: str = "") -> None:
    maven.fetch_jars(repository, print)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name[0] != "."}


WHOLE = {jar.name: CONTENT[jar.artifact] for jar in JARS}


def test_all_jars_are_fetched_and_appear_at_once(repository: Repository, root: Path) -> None:
    (root / "spark-older").mkdir(parents=True)
    fetch(repository.url)
    assert content(root / FOLDER) == WHOLE
    assert {path.name for path in root.iterdir()} == {FOLDER, "spark-older"}
    fetch()
    assert len(repository.asked) == 3, "what is there is fetched no more, and needs no repository"


def test_a_run_goes_on_where_another_one_was_cut_short(repository: Repository, root: Path) -> None:
    lost = f"/maven/{JARS[1].path}"
    held_back = repository.files.pop(lost)
    with pytest.raises(SparkMissingError, match=r"404 .*kafka-1\.0\.jar"):
        fetch(repository.url)
    assert not (root / FOLDER).exists(), "merges see all of it or nothing"
    repository.files[lost] = held_back
    fetch(repository.url)
    assert content(root / FOLDER) == WHOLE
    assert repository.asked.count(f"/maven/{JARS[0].path}") == 1


def test_a_jar_that_isnt_the_listed_one_is_refused(repository: Repository, root: Path) -> None:
    repository.files[f"/maven/{JARS[0].path}"] = b"another one"
    with pytest.raises(SparkMissingError, match="SHA-256"):
        fetch(repository.url)
    assert content(root / f"{FOLDER}.fetching") == {}


def test_a_transfer_that_is_cut_short_is_told_as_such(repository: Repository, root: Path) -> None:
    repository.lost = 1
    with pytest.raises(SparkMissingError, match=r"499,999 of 500,000 bytes"):
        fetch(repository.url)
    repository.lost = 0
    fetch(repository.url)
    assert content(root / FOLDER) == WHOLE


def test_a_jar_that_was_damaged_is_replaced(repository: Repository, root: Path) -> None:
    fetch(repository.url)
    (root / FOLDER / JARS[2].name).write_bytes(b"cut")
    fetch(repository.url)
    assert content(root / FOLDER) == WHOLE


def test_a_folder_serves_as_a_repository(tmp_path: Path, root: Path) -> None:
    for jar in JARS:
        (file := tmp_path / "maven" / jar.path).parent.mkdir(parents=True)
        file.write_bytes(CONTENT[jar.artifact])
    fetch((tmp_path / "maven").as_uri())
    assert content(root / FOLDER) == WHOLE


def test_a_password_opens_the_repository_and_is_shown_nowhere(
    repository: Repository, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.password = "Basic " + b64encode(b"us:er/1").decode()
    url = repository.url.replace("http://", "http://us:er%2F1@")
    del repository.files[f"/maven/{JARS[2].path}"]
    with pytest.raises(SparkMissingError) as raised:
        fetch(url)
    assert "er%2F1" not in str(raised.value) + capsys.readouterr().out
    assert content(root / f"{FOLDER}.fetching").keys() == {jar.name for jar in JARS[:2]}


@pytest.mark.parametrize("url", ["", "ftp://example.org/maven", "example.org/maven"])
def test_a_repository_has_to_be_named(url: str) -> None:
    with pytest.raises(ConfigError, match="--repository or MILLRACE_MAVEN_REPOSITORY"):
        fetch(url)


def test_a_folder_that_cant_be_written_is_named(repository: Repository, root: Path) -> None:
    root.write_text("a file")
    with pytest.raises(ConfigError, match="--to DIR"):
        fetch(repository.url)


def test_two_runs_take_turns(repository: Repository, root: Path) -> None:
    root.mkdir()
    with maven._alone(root), pytest.raises(BusyError):
        fetch(repository.url)


def test_a_run_finds_what_another_one_made_before_its_turn(
    repository: Repository, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = maven._alone

    def after_another(folder: Path) -> AbstractContextManager[None]:
        monkeypatch.setattr(maven, "_alone", alone)
        fetch(repository.url)
        return alone(folder)

    monkeypatch.setattr(maven, "_alone", after_another)
    fetch(repository.url)
    assert content(root / FOLDER) == WHOLE
    assert {path.name for path in root.iterdir()} == {FOLDER}
    assert len(repository.asked) == len(JARS)
