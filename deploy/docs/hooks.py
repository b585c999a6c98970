"""MkDocs' hooks: the repository's pages → pages that MkDocs renders in the same way.

README.md is the site's first page. Other link targets outside docs/ get their own pages, so that
every link works. GitHub's Markdown has lists and tables directly below a paragraph, nested lists
with two spaces, and escaped pipes in a table's code. Python-Markdown needs another form.
https://www.mkdocs.org/dev-guide/plugins/#events
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
}
"""Pages of the repository outside docs/ → their place in the site."""
SOURCE: Final = "source/"
"""The site's folder for files that pages link to."""
LANGUAGES: Final = {".py": "python", ".sql": "sql", ".toml": "toml"}
_FIRST: Final = "---\nhide: [navigation]\n---\n"
"""The first page has no neighbours."""
_PLAIN: Final = frozenset({".jsonl"})
"""Copied unchanged."""
_FENCE: Final = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)(?=(?:#[^)\s]+)?\))")
_CODE: Final = re.compile(r"`[^`\n]+`")
_BLOCK: Final = re.compile(r"^(\||[-*] |1\. )")
_NESTED: Final = re.compile(r"^ {2}(?=[-*] )", re.MULTILINE)


def slug(title: str, _separator: str) -> str:
    """Return a heading's anchor, as on GitHub."""
    return re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-")


def on_config(config: Any) -> Any:
    """Set the anchors of headings."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages outside docs/, and all other link targets there."""
    for path, uri in PAGES.items():
        text = (ROOT / path).read_text(encoding="utf-8")
        first = _FIRST if uri == "index.md" else ""
        files.append(File.generated(config, uri, content=f"{first}{text}"))
    pages = [file.src_uri for file in files if file.is_documentation_page()]
    left = {target for uri in pages for target in _linked(uri)}
    done = set[str]()
    while left:
        path = left.pop()
        done.add(path)
        content = _content(ROOT / path, path)
        files.append(
            File.generated(
                config, _source(path), content=content, inclusion=InclusionLevel.NOT_IN_NAV
            )
        )
        if (ROOT / path).is_dir():
            left |= {each for each in _within(path) if each not in done}
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Convert a page to Python-Markdown's form."""
    uri = page.file.src_uri
    if uri.startswith(SOURCE):
        return markdown
    parts = _FENCE.split(markdown)
    texts = [part if number % 2 else _rendered(part, uri) for number, part in enumerate(parts)]
    return "".join(texts)


def _rendered(text: str, uri: str) -> str:
    text = _LINK.sub(lambda match: _place(match[1], uri), _NESTED.sub("    ", text))
    lines, before = list[str](), ""
    for line in text.split("\n"):
        begins = _BLOCK.match(line)
        if begins and before and not before.startswith(" ") and not _BLOCK.match(before):
            lines.append("")
        is_row = line.startswith("|")
        lines.append(_CODE.sub(lambda code: code[0].replace(r"\|", "|"), line) if is_row else line)
        before = line
    return "\n".join(lines)


def _repository_path(uri: str) -> str:
    """Return the repository's path of a page of the site."""
    return next((path for path, own in PAGES.items() if own == uri), f"docs/{uri}")


def _target(link: str, uri: str) -> str:
    """Return a link's target, as a path of the repository; a folder's page, if it has one."""
    path = os.path.normpath(Path(_repository_path(uri)).parent / link)
    page = f"{path}/README.md"
    return page if (ROOT / page).is_file() else path


def _place(link: str, uri: str) -> str:
    """Return the same link within the site."""
    target = _target(link, uri)
    if target.startswith("docs/"):
        own = target.removeprefix("docs/")
    else:
        own = PAGES.get(target) or _source(target)
    return os.path.relpath(own, Path(uri).parent)


def _source(path: str) -> str:
    """Return the site's path of a file or a folder of the repository."""
    suffix = "" if Path(path).suffix in _PLAIN else ".md"
    return f"{SOURCE}{path}{suffix}"


def _linked(uri: str) -> Iterator[str]:
    """Yield files and folders outside docs/ that a page links to."""
    text = (ROOT / _repository_path(uri)).read_text(encoding="utf-8")
    for link in _LINK.findall(_FENCE.sub("", text)):
        target = _target(link, uri)
        is_outside = not target.startswith("docs/") and target not in PAGES
        if is_outside and (ROOT / target).exists():
            yield target


def _within(path: str) -> list[str]:
    """Return the files of a folder."""
    names = sorted(each.name for each in (ROOT / path).iterdir() if each.is_file())
    return [f"{path}/{name}" for name in names]


def _content(file: Path, path: str) -> str:
    """Return a file's page, a folder's list, or a file unchanged."""
    if file.is_dir():
        names = [Path(each).name for each in _within(path)]
        folder = Path(path).name
        links = [f"- [{name}]({folder}/{_source(name).removeprefix(SOURCE)})" for name in names]
        return "\n".join([f"# {path}", "", *links, ""])
    text = file.read_text(encoding="utf-8")
    if file.suffix in _PLAIN:
        return text
    return f"# {path}\n\n```{LANGUAGES.get(file.suffix, 'text')}\n{text}\n```\n"
