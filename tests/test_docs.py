"""The documentation is whole: every clause, error, hook and capability has its place, and every link leads somewhere."""

from __future__ import annotations

import inspect
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from rmqstore import errors, hookspecs
from rmqstore.contract import Capabilities, Operation

ROOT = Path(__file__).parents[1]
CONTRACT = ROOT / "docs" / "contract.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])

CLAUSES = [
    f"{family}{number}"
    for family, count in {"T": 12, "C": 6, "H": 4, "P": 14, "Q": 3, "R": 7, "F": 4, "X": 5, "K": 2, "S": 1, "I": 2}.items()
    for number in range(1, count + 1)
]

_HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
_CLAUSE_HEADING = re.compile(r"^### ([A-Z]\d+): \S", re.MULTILINE)
_ANCHOR = re.compile(r'<a id="([^"]+)"></a>')
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_THREAD = re.compile(r"(?<![\w/.])([\w.-]+/)*[\w.-]*#\d+")
_CODE_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_CODE_SPAN = re.compile(r"`[^`\n]*`")
_PATH = re.compile(r"(?<![\w/.])(?:rmqstore|plugins|conformance|benchmarks|tests|docs)/[\w./-]*\w\.py\b")


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose_of(page: Path) -> str:
    return _CODE_SPAN.sub("", _CODE_BLOCK.sub("", text_of(page)))


def all_docs() -> str:
    return "\n".join(text_of(page) for page in PAGES)


def clause_sections() -> dict[str, str]:
    """Return the text of each clause, by id."""
    text = text_of(CONTRACT)
    starts = [(match[1], match.end()) for match in _CLAUSE_HEADING.finditer(text)]
    return {name: re.split(r"^(?:##|<a id=)", text[start:], maxsplit=1, flags=re.MULTILINE)[0] for name, start in starts}


def anchors_of(page: Path) -> set[str]:
    """Return what a link may name in a page: the ids of its headings, as GitHub makes them, and its explicit anchors."""
    text = text_of(page)
    found: Counter[str] = Counter()
    slugs: set[str] = set()
    for heading in _HEADING.findall(_CODE_BLOCK.sub("", text)):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        slugs.add(f"{slug}-{found[slug]}" if found[slug] else slug)
        found[slug] += 1
    return slugs | set(_ANCHOR.findall(text))


# ---------------------------------------------------------------- the contract


def test_every_clause_is_a_heading_once() -> None:
    found = Counter(_CLAUSE_HEADING.findall(text_of(CONTRACT)))
    assert set(found) == set(CLAUSES)
    assert set(found.values()) == {1}


@pytest.mark.parametrize("clause", CLAUSES)
def test_a_clause_says_why_and_what_governs_it(clause: str) -> None:
    section = clause_sections()[clause]
    assert section.count("**Why.**") == 1
    assert section.count("**Governed by**") == 1
    assert len(section.partition("**Why.**")[0].split()) >= 20, "a clause is full sentences"


def test_every_clause_has_an_anchor_of_its_own() -> None:
    anchors = Counter(_ANCHOR.findall(text_of(CONTRACT)))
    assert [clause for clause in CLAUSES if anchors[clause.lower()] != 1] == []


def test_threads_are_named_with_their_repository() -> None:
    """A bare ``#123`` would mean a thread of this project to a reader, and to GitHub."""
    for page in PAGES:
        bare = [match[0] for match in _THREAD.finditer(re.sub(r"\]\([^)]*\)", "]", prose_of(page))) if match[0].count("/") != 1]
        assert not bare, f"{page.name}: {bare}"


def test_clauses_that_the_code_names_exist() -> None:
    named: dict[str, str] = {}
    for file in sorted(ROOT.glob("rmqstore/**/*.py")) + sorted(ROOT.glob("plugins/*/src/**/*.py")):
        for group in re.findall(r"\(((?:[TCHPQRFXKSI]\d{1,2})(?:(?:, |–)[TCHPQRFXKSI]\d{1,2})*)\)", text_of(file)):
            named |= dict.fromkeys(re.findall(r"[A-Z]\d{1,2}", group), str(file))
    assert {clause: file for clause, file in named.items() if clause not in CLAUSES} == {}


# ---------------------------------------------------------------- what the code offers


def test_every_error_is_named() -> None:
    names = [name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, errors.RmqstoreError)]
    assert len(names) > 20
    assert [name for name in names if f"`{name}`" not in text_of(CONTRACT)] == []


def test_the_table_of_errors_names_no_error_that_is_not_there() -> None:
    table = text_of(CONTRACT).partition("## Errors")[2]
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", table, re.MULTILINE)
    assert rows
    for name, builtin in rows:
        bases = {base.__name__ for base in getattr(errors, name).__mro__}
        assert builtin in bases, f"{name} is no {builtin}"


def test_every_hook_is_named_with_its_arguments() -> None:
    hooks = {name: value for name, value in vars(hookspecs).items() if name.startswith("rmqstore_") and callable(value)}
    assert hooks
    text = all_docs()
    for name, hook in hooks.items():
        assert f"`{name}({', '.join(inspect.signature(hook).parameters)})" in text


def test_every_capability_and_operation_is_named() -> None:
    text = all_docs()
    assert [field for field in Capabilities.__struct_fields__ if f"`{field}`" not in text] == []
    assert [operation.name for operation in Operation if f"`{operation.name}`" not in text] == []


# ---------------------------------------------------------------- where is what


def test_files_that_pages_name_are_there() -> None:
    named = {path: page.name for page in PAGES for path in _PATH.findall(text_of(page))}
    assert {path: page for path, page in named.items() if not (ROOT / path).exists()} == {}


def test_classes_of_the_walks_are_where_the_page_says() -> None:
    page = text_of(ROOT / "docs" / "architecture.md")
    taking_part = re.findall(r"participant \w+ as (?:[\w ]+: )?(\w+)[^<\n]*<br/>([\w/]+\.py)", page)
    assert len(taking_part) > 10
    for name, path in taking_part:
        assert re.search(rf"^(?:class|def) {name}\b", text_of(ROOT / path), re.MULTILINE), f"{name} is not in {path}"


def test_what_is_called_in_the_diagrams_is_there() -> None:
    calls = set(re.findall(r"^ +\w+-?->>\w+: (?:[\w ]+[.:] ?)*(\w+)\(", text_of(ROOT / "docs" / "architecture.md"), re.MULTILINE))
    assert len(calls) > 15
    code = "\n".join(text_of(path) for path in (ROOT / "rmqstore").rglob("*.py"))
    assert calls <= set(re.findall(r"^ *def (\w+)", code, re.MULTILINE))


def test_what_the_architecture_page_says_is_somewhere_is_there() -> None:
    table = text_of(ROOT / "docs" / "architecture.md").partition("## Where is what")[2]
    rows = re.findall(r"^\| .+? \| (`.+`) \| (`.+`) \|$", table, re.MULTILINE)
    assert len(rows) > 20
    for paths, names in rows:
        text = "\n".join(text_of(ROOT / path) for path in re.findall(r"`(.+?)`", paths))
        for name in re.findall(r"`(.+?)`", names):
            assert re.search(rf"^ *(?:def |class |){name}\b", text, re.MULTILINE), f"{name} is not in {paths}"


# ---------------------------------------------------------------- links


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_resolve(page: Path) -> None:
    broken = []
    for link in _LINK.findall(_CODE_BLOCK.sub("", text_of(page))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        is_there = target.exists() and target.is_relative_to(ROOT)
        if not is_there or (fragment and target.suffix == ".md" and fragment not in anchors_of(target)):
            broken.append(link)
    assert not broken


def test_links_lead_to_files_that_are_kept() -> None:
    """A file that git ignores is there for its author only."""
    links = {link.partition("#")[0] for page in (ROOT / "docs").glob("*.md") for link in _LINK.findall(text_of(page))}
    paths = sorted({str((ROOT / "docs" / link).resolve()) for link in links if link and not re.match(r"[a-z]+:", link)})
    try:
        ignored = subprocess.run(["git", "check-ignore", *paths], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("git is not installed")
    if ignored.returncode not in (0, 1):
        pytest.skip("the sources are not a git repository")
    assert ignored.stdout == ""
