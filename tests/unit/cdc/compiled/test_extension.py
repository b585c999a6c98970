"""The extension exists, built from these sources; otherwise a message has the remedy."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cdc.compiled import digests, extension, fast
from cdc.compiled.extension import digest
from cdc.errors import ExitCode, ExtensionError

ROOT = Path(__file__).parents[4]
MISSING = "import sys; sys.modules['cdc.compiled.fast'] = None; import millrace; millrace.main()"


def test_the_extensions_are_of_these_sources() -> None:
    assert digest("fast") == fast.SOURCES
    assert digest("digests") == digests.SOURCES
    for name in extension.INCLUDES:
        extension.require_extension(name)


def test_what_a_source_includes_is_told() -> None:
    folder = Path(extension.__file__).parent
    for name, included in extension.INCLUDES.items():
        lines = (folder / f"{name}.pyx").read_text().splitlines()
        named = [line.split('"')[1] for line in lines if line.startswith("include ")]
        assert sorted(named) == [f"{each}.pxi" for each in included]


@pytest.mark.parametrize("words", [("--version",), ("status",)])
def test_no_command_starts_without_the_extension(words: tuple[str, ...]) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", MISSING, *words], capture_output=True, text=True, check=False
    )
    assert ended.returncode == ExitCode.SPARK_MISSING, ended.stderr
    first, *others = ended.stderr.splitlines()
    assert first.startswith("millrace: can't load Millrace's compiled part")
    assert str(ROOT / "cdc" / "compiled") in first
    assert others == ["  → " + extension._REMEDY]
    assert ended.stdout == ""


def test_an_extension_of_other_sources_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extension, "digest", lambda _name: "other")
    with pytest.raises(ExtensionError, match=r"built from other sources.*\n.*make environment"):
        extension.require_extension()


def test_without_a_compiler_the_installation_ends_with_one_message(tmp_path: Path) -> None:
    """A small source stands in for the extension's."""
    folder = tmp_path / "cdc" / "compiled"
    folder.mkdir(parents=True)
    for path in ("setup.py", "pyproject.toml", "README.md", "cdc/compiled/extension.py"):
        shutil.copy(ROOT / path, tmp_path / path)
    for name, included in extension.INCLUDES.items():
        for part in (f"{name}.pyx", *(f"{each}.pxi" for each in included)):
            (folder / part).write_text("# cython: language_level=3\n")
    ended = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=tmp_path,
        env=os.environ | {"CC": "no-compiler", "LDSHARED": "no-compiler"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    message = ended.stderr[ended.stderr.index("millrace: ") :]
    assert message.startswith("millrace: cdc/compiled/fast.pyx can't be compiled: ")
    assert "install a C compiler and Python's headers" in message
    assert "Traceback" not in ended.stderr
