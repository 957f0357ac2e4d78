"""README, docs and examples do what they say: their code runs, and prints what they print."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page):
    """Code of the page, with its line and what it prints: a block of text right behind it."""
    text = page.read_text()
    found = []
    code_end = None
    for match in _FENCE.finditer(text):
        language, body = match.groups()
        behind = code_end is not None and not text[code_end : match.start()].strip()
        code_end = None
        if language == "python":
            found.append((text[: match.start(2)].count("\n"), body, None))
            code_end = match.end()
        elif language == "text" and behind:
            found[-1] = (*found[-1][:2], body)
    return found


@pytest.mark.filterwarnings("ignore::faststeal.capture.FaststealWarning")
@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name
)
def test_code_of_a_page(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for line, code, printed in blocks(page):
        exec(compile("\n" * line + code, str(page), "exec"), names)  # noqa: S102 - our own text
        out = capsys.readouterr().out
        if printed is not None:
            assert lines(out) == lines(printed), code


def lines(text):
    """Lines without what cannot be seen at their ends."""
    return [line.rstrip() for line in text.strip().splitlines()]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_example(example, tmp_path):
    result = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


def test_every_page_that_is_linked_is_there():
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def commands():
    """The commands of the first block of shell in the README."""
    [body, *_] = [body for language, body in _FENCE.findall(README.read_text()) if language == "sh"]
    return [line for line in body.splitlines() if line and not line.startswith("#")]


def test_the_two_commands():
    demo, test = commands()
    assert demo.endswith("faststeal demo")
    run = (ROOT / ".ci" / "run").read_text()
    assert re.search(rf"^\s*{re.escape(test)}$", run, re.MULTILINE)
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_version_is_in_the_changelog():
    import faststeal

    assert f"## [{faststeal.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
