"""The numbers of docs/security.md and of the code are the same: each row of its table of numbers names a constant, whose value is read from the
source, and the table of bounds has no number that this table has not. What the bounds do is in the tests that the rows name."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TEXT = (ROOT / "docs/security.md").read_text()
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "s": 1, "ms": 1}
# Numbers of the table of bounds that no constant has: how it is measured, results, statuses, defaults, and parts that are made of others.
OTHERS = {
    "eight times", "24 times", "64 lists", "100 levels", "0.6 s", "half a step",
    "24 took", "99999989", "128 MiB", "160 MiB", "4 MiB", "64 KiB for", "less than 1 MiB", "50 ms", "100 ms", "8 to 20 ms", "a KiB",
}


def value_of(text, name):
    """Of `NAME = expression` or `#define NAME expression`, with numbers only."""
    found = re.search(rf"^\s*#define {name}\s+(.+?)\s*(/\*.*)?$", text, re.M) or re.search(rf"\b{name} = ([^,;}}\n/#]+)", text)
    assert found, name
    expression = re.sub(r"(?<=\d)(ull|u|ul|l)\b", "", found[1].strip(), flags=re.I).strip("()")
    assert re.fullmatch(r"[\d\s+*<]+", expression), (name, expression)
    return eval(expression)  # digits and operators only


def rows():
    lines = TEXT[TEXT.index("**The numbers**"):].split("\n\n")[1].splitlines()[2:]
    found = []
    for line in lines:
        number, what, constant, test = (part.strip() for part in line.strip("|").split(" | "))
        file, name = re.fullmatch(r"`([\w/.]+)`: `(\w+)`", constant).groups()
        amount, unit = re.fullmatch(r"([\d,]+) ?(\w*)", number).groups()
        found.append((int(amount.replace(",", "")) * UNITS[unit], unit, what, file, name, test))
    return found


def test_the_numbers_are_those_of_the_code():
    assert len(rows()) > 55
    wrong = []
    for number, unit, what, file, name, test in rows():
        value = value_of((ROOT / file).read_text(), name)
        if unit in ("s", "ms") and name.endswith("_NS"):
            value = value / {"s": 1e9, "ms": 1e6}[unit]
        elif unit == "MiB" and file.endswith(".py"):
            value <<= 20  # it has the unit in its name
        if value != number:
            wrong.append(f"{file}: {name} is {value}; docs/security.md says {number} ({what})")
    assert not wrong, wrong


def test_each_number_has_a_test():
    for *_, name, test in rows():
        files = re.findall(r"`([\w/.]+\.\w+)`", test)
        assert files or test.startswith("the file itself"), name
        for file in files:
            found = list(ROOT.glob(file if "/" in file else f"tests/**/{file}"))
            assert found, (name, file)


def test_each_number_of_the_text_is_in_the_table():
    """Numbers with a unit or a noun in the table of bounds; a new one needs a row, or a place among OTHERS."""
    begin = TEXT.index("| bound | test |")
    bounds = [line.rsplit(" | ", 1)[0] for line in TEXT[begin:TEXT.index("**The numbers**")].splitlines()[2:] if line.startswith("| ")]
    known = {f"{number:,}" for number, *_ in rows()} | {row.split(" | ")[0].strip("| ") for row in TEXT.splitlines()}
    missing = []
    for text in bounds:
        text = re.sub(r"`[^`]*`|HTTP/\S+|\b[45]\d\d\b|SHA-256", "", text)
        for other in OTHERS:
            text = text.replace(other, "")
        for number, unit in re.findall(r"(?<![\w.])(\d[\d,]*)(?: (KiB|MiB|ms|s|minutes)\b)?", text):
            number = number.rstrip(",")
            asked = f"{number} {unit}".strip() if unit != "minutes" else f"{60 * int(number)} s"
            if asked not in known:
                missing.append(f"{asked}: {text[:60]}")
    assert not missing, missing
