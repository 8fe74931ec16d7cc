"""README.md of this folder names tests that exist: the file, and in it the function."""

import pathlib
import re

import test_all

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def test_what_the_table_names_exists():
    text = (ROOT / "tests/attack/README.md").read_text()
    named = re.findall(r"`(tests/[\w/.]+)(?:::(\w+))?`", text)
    assert len(named) > 30
    missing = [f"{path}::{name}" for path, name in named
               if not (ROOT / path).is_file() or name and not re.search(rf"(def |START_TEST\(){name}\(?\)?", (ROOT / path).read_text())]
    assert not missing, missing


def test_all_at_once_are_all():
    """Every attack of the table runs in test_all.py, or the table says why not, and nothing there is in no row of the table."""
    text = (ROOT / "tests/attack/README.md").read_text()
    rows = [line for line in text[:text.index("| fault |")].splitlines() if line.startswith("| ") and not line.startswith("| attack")]
    names, columns = list(test_all.attacks()), [row.rsplit("|", 2)[1].strip() for row in rows]
    assert len(rows) > 10
    begins = [b for column in columns for b in re.findall("`([^`]+)`", column)]
    assert all(column == "all" or column.startswith("no: ") or "`" in column for column in columns), columns
    assert not [b for b in begins if not any(name.startswith(b) for name in names)], begins
    others = ("bodies with a key", "half a body", "silent", "reads nothing")  # relatives of several rows
    assert not [name for name in names if not name.startswith((*begins, *others))]
