"""A hook of mkdocs.yml: pages from outside docs/ join the site, and links and pipes that hold on GitHub hold in it."""

from __future__ import annotations

import re
from os.path import relpath
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {"README.md": "index.md", "benchmarks/README.md": "measuring.md", "conformance/README.md": "suite.md"}
OUTSIDE |= {f"{name}.md": f"{name.lower()}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")}
ENGINES = ("examples/sqlite", "lmdb", "memory", "rocksdb", "wheel")
OUTSIDE |= {f"plugins/{name}/README.md": f"engines/{Path(name).name}.md" for name in ENGINES}
_LINK = re.compile(r"\[([^\]]*)\]\((?![a-z]+:)([^)\s#]+)(#[^)\s]*)?\)")
_ROW, _CODE = re.compile(r"^\|.*", re.MULTILINE), re.compile(r"`[^`]+`")


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages from outside."""
    for path, place in OUTSIDE.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links lead to pages of the site, leave only the text of those to other files, and unescape pipes in the code of a table."""
    places = {file.abs_src_path: file.src_uri for file in files if file.inclusion.is_included()}

    def in_site(link: re.Match[str]) -> str:
        text, path, anchor = link.groups(default="")
        target = (Path(page.file.abs_src_path).parent / path).resolve()
        if place := places.get(str(target)):
            return f"[{text}]({relpath(place, Path(page.file.src_uri).parent)}{anchor})"
        return text if target.exists() and target.is_relative_to(ROOT) else link[0]

    return _ROW.sub(lambda row: _CODE.sub(lambda code: code[0].replace(r"\|", "|"), row[0]), _LINK.sub(in_site, markdown))
