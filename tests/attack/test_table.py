"""README.md of this folder names tests that exist: the file, and in it the function."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def test_what_the_table_names_exists():
    text = (ROOT / "tests/attack/README.md").read_text()
    named = re.findall(r"`(tests/[\w/.]+)(?:::(\w+))?`", text)
    assert len(named) > 30
    missing = [f"{path}::{name}" for path, name in named
               if not (ROOT / path).is_file() or name and not re.search(rf"(def |START_TEST\(){name}\(?\)?", (ROOT / path).read_text())]
    assert not missing, missing
