"""docs/reference/commands.md → it has the help of every command."""

from deploy.commands.app import COMMANDS
from deploy.docs.commands import GUIDES, PAGE, page


def test_the_page_of_commands_is_the_help() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "write it: python -m deploy.docs.commands"


def test_each_command_has_its_section_options_and_guide() -> None:
    assert GUIDES.keys() == COMMANDS.keys()
    sections = page().split("\n## ")[1:]
    assert [section.split("\n", 1)[0] for section in sections] == list(COMMANDS)
    (snapshot,) = (section for section in sections if section.startswith("snapshot\n"))
    assert "| `--reset` | Delete rows that no longer exist in the source. |" in snapshot
    (letters,) = (section for section in sections if section.startswith("dead-letters\n"))
    assert "### dead-letters replay" in letters
