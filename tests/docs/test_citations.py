"""What the repository cites stands in it: pages of docs/, their sections, and the targets of relative links."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from appliance.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

# Another repository's page is written `repository@commit:docs/PAGE.md`.
WORKPLACE = "wo" + "rk"
"""The folder of the machines that this is written on; in two parts, so that no text here names a path of theirs."""

CITATION = re.compile(r'(?<![\w:/@.-])docs/([\w-]+\.md)(?:, \\?"([^"\\]+)\\?")?')
# A line of a comment goes on after its mark.
BREAK = re.compile(r"\s*\n[ \t]*(?:#|//)?[ \t]*")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^(```|~~~).*?^\1[^\n]*$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)

PAGES_OUTSIDE = (
    *("volta", "checkpoints", "foundations", "performance", "field-reports", "v100-timings", "dflash2", "house"),
    *("engine-binding", "kernel-groundwork", "sm70-fork-design", "appliances", "code-models", "design"),
)
OUTSIDE = (
    re.compile(rf"(?<!docs/)\b(?:{'|'.join(PAGES_OUTSIDE)})\.md\b"),
    re.compile(r"(?<![\w./-])(?:facts|seeds)/"),
    re.compile(r"\.\./shared\b"),
    re.compile(rf"(?<![\w.])/{WORKPLACE}/"),
    re.compile(r"\bissues? \d+\b", re.IGNORECASE),
)
"""What only somebody with other files than the repository's could look up."""


def files(root: Path) -> Iterator[Path]:
    """Yield what git would list or could be asked to add: every file that .gitignore does not name."""
    ignored = [line for line in (root / ".gitignore").read_text(encoding="utf-8").split() if not line.startswith("#")]
    folders = [root]
    while folders:
        for path in sorted(folders.pop().iterdir()):
            where = "/" + path.relative_to(root).as_posix()
            # A pattern with a slash in front holds for the root alone, another one for a name anywhere.
            if path.name == ".git" or any(
                fnmatch(where if pattern.startswith("/") else path.name, pattern.rstrip("/")) for pattern in ignored
            ):
                continue
            if path.is_dir() and not path.is_symlink():
                folders.append(path)
            elif path.is_file():
                yield path


def texts(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield each text file below `root`, this one left out: it spells what it forbids."""
    for path in files(root):
        if path == Path(__file__).resolve():
            continue
        try:
            yield path, path.read_bytes().decode()
        except UnicodeDecodeError:
            continue


def headings(page: Path) -> list[str]:
    """Return the headings of a Markdown page, without their marks."""
    return HEADING.findall(FENCED.sub("", page.read_text(encoding="utf-8")))


def anchor(heading: str) -> str:
    """Return the fragment that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def unresolved_citations(root: Path) -> list[str]:
    """Return every citation of a page that is not in docs/, or of a section that the page has not."""
    found = []
    for path, text in texts(root):
        for page, section in CITATION.findall(BREAK.sub(" ", text)):
            if page == "FILE.md":
                continue  # a citation's form, as CONTRIBUTING.md shows it
            cited = root / "docs" / page
            if not cited.is_file():
                found.append(f"{path.relative_to(root)}: docs/{page} does not exist")
            elif section and section not in headings(cited):
                found.append(f'{path.relative_to(root)}: docs/{page} has no section "{section}"')
    return found


def named_outside(root: Path) -> list[str]:
    """Return every mention of a file, folder or number that is kept outside the repository."""
    found = []
    for path, text in texts(root):
        # In docs/ a link goes from page to page; `dead_links` looks where.
        plain = BREAK.sub(" ", re.sub(r"\]\([^)\s]+\)", "]", text) if path.suffix == ".md" else text)
        found += [f"{path.relative_to(root)}: {match[0]}" for pattern in OUTSIDE for match in pattern.finditer(plain)]
    return found


def dead_links(root: Path) -> list[str]:
    """Return every relative link of a Markdown file whose file or heading is not there."""
    found = []
    for path, text in texts(root):
        if path.suffix != ".md":
            continue
        for link in LINK.findall(CODE.sub("", text)):
            if re.match(r"[a-z][a-z0-9+.-]*:", link):
                continue
            name, _, fragment = link.partition("#")
            target = (path.parent / name).resolve() if name else path
            if not target.is_relative_to(root) or not target.exists():
                found.append(f"{path.relative_to(root)}: {link} does not exist")
            elif fragment and (target.is_dir() or fragment not in map(anchor, headings(target))):
                found.append(f"{path.relative_to(root)}: {link} has no such heading")
    return found


def test_every_cited_page_and_section_is_in_docs() -> None:
    assert unresolved_citations(ROOT) == []


def test_no_text_names_what_is_outside_the_repository() -> None:
    assert named_outside(ROOT) == []


def test_relative_links_resolve() -> None:
    assert dead_links(ROOT) == []


def test_every_page_of_docs_is_cited() -> None:
    pages = {page.name for page in (ROOT / "docs").glob("*.md")}
    cited = {page for _, text in texts(ROOT) for page, _ in CITATION.findall(BREAK.sub(" ", text))}
    assert pages <= cited
    assert len(pages) >= 6


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with one page of docs/."""
    (tmp_path / ".gitignore").write_text("/build/\n*.egg-info/\n", encoding="utf-8")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/volta.md").write_text("# Volta\n\n## Where a token's time goes\n\n```\n# no heading\n```\n")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('# docs/volta.md, "Volta": 26.4 cycles', None),
        ('"""Of a step (docs/volta.md, "Where a\ntoken\'s time goes")."""', None),
        ('    # as docs/volta.md, "Where a\n    # token\'s time goes" says', None),
        ('source = "docs/volta.md, \\"Volta\\": 8.38"', None),
        ("Flo5k5/ninfer@05c8f380:docs/v100.md", None),
        ('docs/volta.md, "no heading"', 'docs/volta.md has no section "no heading"'),
        ('docs/volta.md, "Where a token"', 'docs/volta.md has no section "Where a token"'),
        ('source = "docs/volta.md, \\"Nowhere\\": 8.38"', 'docs/volta.md has no section "Nowhere"'),
        ("(docs/turing.md)", "docs/turing.md does not exist"),
    ],
)
def test_citations_are_looked_up(tree: Path, text: str, problem: str | None) -> None:
    (tree / "kernel.py").write_text(text, encoding="utf-8")
    assert unresolved_citations(tree) == ([] if problem is None else [f"kernel.py: {problem}"])


@pytest.mark.parametrize(
    ("text", "mention"),
    [
        ("docs/volta.md", None),
        ("sm70_qwen38_design.md of 1Cat", None),
        ("artifacts/ and models/work/model", None),
        ("cutlass #1460 and PR 629", None),
        ("volta.md C.1", "volta.md"),
        ("(facts/volta)", "facts/"),
        ("seeds/beat.txt", "seeds/"),
        ("see ../shared for more", "../shared"),
        (f"cd /{WORKPLACE}/main", f"/{WORKPLACE}/"),
        ("as Issue\n# 3 wants", "Issue 3"),
    ],
)
def test_mentions_of_what_is_outside_are_found(tree: Path, text: str, mention: str | None) -> None:
    (tree / "kernel.py").write_text(text, encoding="utf-8")
    assert named_outside(tree) == ([] if mention is None else [f"kernel.py: {mention}"])


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ("docs/volta.md", None),
        ("docs/volta.md#where-a-tokens-time-goes", None),
        ("docs", None),
        ("https://example.org/none.md", None),
        ("docs/volta.md#nowhere", "docs/volta.md#nowhere has no such heading"),
        ("docs/turing.md", "docs/turing.md does not exist"),
        ("../outside.md", "../outside.md does not exist"),
    ],
)
def test_links_are_followed(tree: Path, link: str, problem: str | None) -> None:
    (tree / "README.md").write_text(f"[a page]({link})\n\n    `[code](nowhere)`\n", encoding="utf-8")
    assert dead_links(tree) == ([] if problem is None else [f"README.md: {problem}"])


def test_what_git_ignores_is_not_read(tree: Path) -> None:
    for name in ("build", "a.egg-info", "kernels/build"):
        (tree / name).mkdir(parents=True)
        (tree / name / "x.py").write_text("volta.md", encoding="utf-8")
    (tree / "picture.png").write_bytes(b"\x89PNG\xff volta.md")
    assert named_outside(tree) == ["kernels/build/x.py: volta.md"]
