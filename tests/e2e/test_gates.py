"""scripts/check-structure, check-tests and check-names on small repositories that a generator makes: a healthy one passes, and one with a
fault of each kind planted at a random place is refused, with the fault's name and number and nothing else."""

import random
import shutil
import subprocess

import pytest

import real

FIELDS, LINES, TEST_LINES = 40, 600, 700
SEEDS = range(3)
FOLDERS = ["report", "run", "link", "core"]  # of decode/, from the top down


@pytest.fixture(autouse=True)
def built():
    """Nothing that is built is needed."""


class Repo:
    """Rooms whose files include only those before them: by folder, the names of the files from the bottom up."""

    def __init__(self, path, seed):
        self.path, self.rng, self.files = path, random.Random(seed), {}
        self.rooms = {"base": [], "engine": [], **{f"decode/{f}": [] for f in reversed(FOLDERS)}}
        self.text = {}
        self.committed = {"keys": 5}
        (path / "scripts").mkdir()
        for name in ("check-structure", "check-tests", "check-names", "sources.py"):
            shutil.copy(real.ROOT / "scripts" / name, path / "scripts" / name)
        lower = []
        for room, names in self.rooms.items():
            for i in range(self.rng.randint(4, 7)):
                names.append(f"{room}/f{i}")
                mine = [n for n in names[:-1] if self.rng.random() < 0.5] + ([self.rng.choice(lower)] if lower else [])
                self.unit(names[-1], mine)
            lower += names
        self.keys(5)
        self.walk()

    def walk(self, rows=None):
        """The table of the files that a reader opens, of the tree's files of decode/ that have a function."""
        names = [n for n in self.text if n.startswith("decode/") and n.count("/") == 2 and n.endswith(".h") and not n.endswith("_impl.h")]
        rows = rows or [(n[len("decode/"):], n[:-2].replace("/", "_")) for n in names if n.split("/")[1] in ("core", "run")][:3]
        self.text["docs/architecture.md"] = "".join(f"| `{file}` | `{function}()` is called |\n" for file, function in rows)
        return rows

    def unit(self, name, includes):
        """A header, a private header and a source of one name, which may include each other."""
        lines = [f'#include "{i}.h"' for i in includes]
        at = self.rng.randint(0, len(lines))
        self.text[f"{name}.h"] = "\n".join([*lines[:at], f"int {name.replace('/', '_')}(void);", ""])
        self.text[f"{name}_impl.h"] = f'#include "{name}.h"\n'
        self.text[f"{name}.c"] = "\n".join([f'#include "{name}.h"', f'#include "{name}_impl.h"', *lines[at:], ""])

    def keys(self, n):
        self.text["docs/configuration.md"] = "".join(f"| `a.k{i}` | a key |\n" for i in range(n))

    def include(self, name, other):
        """In a part of `name` that is drawn."""
        part = self.rng.choice([".h", ".c"])
        self.text[name + part] = f'  #  include "{other}.h"\n' + self.text[name + part]

    def write(self):
        numbers = "".join(f"{what} {n}\n" for what, n in self.committed.items())
        self.text["scripts/structure.txt"] = f"# numbers\norder decode: {' '.join(FOLDERS)}\n{numbers}"
        for name, text in self.text.items():
            p = self.path / name
            p.parent.mkdir(parents=True, exist_ok=True)
            p.write_text(text)

    def git(self, *args):
        subprocess.run(["git", "-C", self.path, "-c", "user.name=t", "-c", "user.email=t@example.org", *args], check=True, capture_output=True)

    def commit(self):
        self.write()
        if not (self.path / ".git").exists():
            self.git("init", "-q")
        self.git("add", "-A")
        self.git("commit", "-qm", "a commit")

    def check(self, script="check-structure", *args):
        """The problems that the script prints."""
        got = subprocess.run([self.path / "scripts" / script, *args], capture_output=True, text=True, check=False)
        assert not got.stderr, got.stderr
        *problems, verdict = got.stdout.splitlines()
        assert verdict.startswith(script) and got.returncode == (1 if problems else 0), got.stdout
        assert problems or verdict.endswith("files ok"), verdict
        return problems


@pytest.fixture(params=SEEDS)
def repo(request, tmp_path):
    return Repo(tmp_path, request.param)


def test_a_healthy_tree_passes(repo):
    repo.commit()
    assert repo.check() == []


def reaches(repo, a, b):
    text = repo.text[a + ".h"] + repo.text[a + ".c"]
    direct = {line.split('"')[1].removesuffix(".h") for line in text.splitlines() if "#include" in line} - {a, a + "_impl"}
    return b in direct or any(reaches(repo, d, b) for d in direct)


def test_a_circle_between_files_of_a_room_is_refused(repo):
    room, names = repo.rng.choice([(r, n) for r, n in repo.rooms.items() if any(reaches(repo, b, a) for a in n for b in n)])
    a, b = repo.rng.choice([(a, b) for a in names for b in names if reaches(repo, b, a)])
    repo.include(a, b)
    repo.commit()
    assert repo.check() == [f"circles {room}: 1, and scripts/structure.txt allows 0"]
    repo.committed[f"circles {room}"] = 1
    repo.commit()
    # the number is new, so it needs a reason
    assert repo.check() == [f"scripts/structure.txt: circles {room} rises from 0 to 1 without `because REASON`"]


def test_an_arrow_upward_in_decode_is_refused(repo):
    low, high = sorted(repo.rng.sample(range(len(FOLDERS)), 2), reverse=True)
    below, above = (repo.rng.choice(repo.rooms[f"decode/{FOLDERS[i]}"]) for i in (low, high))
    repo.include(below, above)
    repo.commit()
    assert repo.check() == ["upward decode: 1, and scripts/structure.txt allows 0"]
    repo.text["decode/top.c"] = f'#include "{below}.h"\n'  # files of decode/ itself are above all
    repo.text["decode/top.h"] = "int top(void);\n"
    repo.include(above, "decode/top")
    repo.commit()
    assert repo.check() == ["upward decode: 2, and scripts/structure.txt allows 0"]


def field(rng, i):
    """A member of a struct, and how many fields it is."""
    return rng.choice([
        (f"int a{i};", 1), (f"const char *a{i}, b{i}[12], *c{i};", 3), (f"void (*call{i})(void *ctx, int n, const char *s);", 1),
        (f"unsigned a{i} : 3;", 1), (f"uint8_t a{i}[2 * (3 + 4)];", 1), (f"int a{i}; /* not; these, words */", 1),
        (f"struct {{\n        int x, y;\n        char *z;\n    }} in{i};", 3), (f"struct other *a{i};", 1), (f"enum {{ A{i}, B{i} }} kind{i};", 1),
        (f"int (*const table{i}[4])(struct thing *t, void (*done)(void *ctx));", 1),
        (f"union {{\n        int x;\n        float y;\n    }} u{i}[3];", 2),
    ])


def a_struct(rng, name):
    fields, n = [], 0
    want = rng.randint(FIELDS - 4, FIELDS + 4)
    while n < want:
        text, count = field(rng, len(fields))
        fields.append(text)
        n += count
    rng.shuffle(fields)
    opening = rng.choice([f"struct {name} {{", f"typedef struct {name} {{"])
    closing = f"}} {name};" if opening.startswith("typedef") else "};"
    return "\n    ".join([opening, *fields]) + f"\n{closing}\n", n


def test_structs_are_counted_and_wide_ones_refused(repo):
    want = []
    for i in range(30):
        name = f"thing{i:02}"
        text, n = a_struct(repo.rng, name)
        where = repo.rng.choice(repo.rooms["engine"]) + repo.rng.choice([".h", ".c"])
        repo.text[where] += text
        if n > FIELDS:
            want.append(f"fields {name}: {n}, and scripts/structure.txt allows 0")
    repo.commit()
    assert want and repo.check() == sorted(want)
    for line in want:
        what, n = line.split(",")[0].split(": ")
        repo.committed[what] = f"{n} because the test says so"
    repo.commit()
    assert repo.check() == []


def test_long_files_are_refused(repo):
    want = []
    for i in range(8):
        limit, folder = repo.rng.choice([(LINES, "engine"), (TEST_LINES, "tests/unit")])
        name, n = f"{folder}/long{i}{repo.rng.choice(['.c', '.h', '.cu', '.cuh'])}", limit + repo.rng.choice([-1, 0, 1, 30])
        repo.text[name] = "\n" * n
        if n > limit:
            want.append(f"lines {name}: {n}, and scripts/structure.txt allows 0")
    repo.commit()
    assert repo.check() == sorted(want)


def test_numbers_fall_and_do_not_rise(repo):
    repo.commit()
    repo.keys(5 + repo.rng.randint(1, 3))
    repo.commit()
    n = repo.text["docs/configuration.md"].count("\n")
    assert repo.check() == [f"keys: {n}, and scripts/structure.txt allows 5"]
    repo.committed["keys"] = n
    repo.commit()
    assert repo.check() == [f"scripts/structure.txt: keys rises from 5 to {n} without `because REASON`"]
    repo.committed["keys"] = f"{n} because more is wanted"
    repo.commit()
    assert repo.check() == []
    repo.keys(3)
    repo.committed["circles engine"] = "1 because it was so"
    repo.commit()
    assert repo.check("check-structure", "--update") == []
    assert (repo.path / "scripts/structure.txt").read_text().splitlines()[2:] == ["keys 3"]


# ---- check-tests ----

CLAIMS = ["ck_assert_int_eq(f(), 1);", "ck_assert(x);", "ck_abort_msg(\"no\");", "SL_CHECK(x, \"no\");", "abort();"]
EMPTY = ["work();", "int x = 1;", "/* ck_assert(x) would be right */", "print(\"ck_assert(x);\");", "// helper0(), abort()"]


def c_helpers(rng, claims):
    """Functions and macros that call each other in a row, the last of which asserts or does not; and the first one's name."""
    depth, text, called = rng.randint(1, 4), "", rng.choice(CLAIMS if claims else EMPTY)
    tag = f"{'good' if claims else 'bad'}{rng.randrange(10**6)}"
    for i in range(depth):
        name = f"{tag}_{i}"
        if rng.random() < 0.3 and "/" not in called:
            text += f"#define {name}(x) \\\n    {called}\n\n"
        else:
            text += f"static void {name}(int x)\n{{\n    {rng.choice(EMPTY)}\n    {called}\n}}\n\n"
        called = f"{name}(1);"
    return text, called


def c_test(rng, name, claims):
    helpers, called = c_helpers(rng, claims)
    body = called if rng.random() < 0.7 else rng.choice(CLAIMS if claims else EMPTY)
    return f"{helpers}START_TEST({name})\n{{\n    {rng.choice(EMPTY)}\n    {body}\n}}\nEND_TEST\n\n"


def test_c_tests_without_an_assertion_are_found(repo):
    want = []
    for i in range(6):
        path, text = f"tests/unit/test_{i}.c", '#include <check.h>\n\n'
        for k in range(5):
            claims = repo.rng.random() < 0.6
            text += c_test(repo.rng, f"case_{i}_{k}", claims)
            if not claims:
                want.append(f"{path}: case_{i}_{k} asserts nothing")
        repo.text[path] = text + f"START_TEST(ends_{i})\n{{\n    work();\n}}\nEND_TEST\n\nint main(void)\n{{\n    tcase_add_exit_test(c, ends_{i}, 1);\n}}\n"
    repo.commit()
    assert sorted(repo.check("check-tests")) == sorted(want)


PY_CLAIMS = ["assert f() == 1", "raise ValueError", "run(x, check=True)", "with pytest.raises(ValueError):\n        f()", "pytest.fail('no')"]
PY_EMPTY = ["work()", "x = 'assert x'", "run(x, check=False)", "# assert x\n    work()"]


def test_python_tests_without_an_assertion_are_found(repo):
    want = []
    for i in range(6):
        path, text = f"tests/e2e/test_{i}.py", ""
        for k in range(5):
            claims = repo.rng.random() < 0.6
            body = repo.rng.choice(PY_CLAIMS if claims else PY_EMPTY)
            for d in range(repo.rng.randint(0, 3)):
                text += f"def {'good' if claims else 'bad'}_{i}_{k}_{d}(x):\n    {body}\n\n"
                body = f"{'good' if claims else 'bad'}_{i}_{k}_{d}(1)"
            line = text.count("\n") + 1
            text += f"{repo.rng.choice(['def', 'async def'])} test_{i}_{k}():\n    {body}\n\n"
            if not claims:
                want.append(f"{path}:{line}: test_{i}_{k} asserts nothing")
        repo.text[path] = text
    repo.commit()
    assert sorted(repo.check("check-tests")) == sorted(want)


def test_the_walk_is_true(repo):
    """At most eight files, each once, and each has the functions that its row names."""
    rows = repo.walk()
    file, function = repo.rng.choice(rows)
    for wrong, why in (([*rows, rows[0]], f"docs/architecture.md: the walk has {len(rows) + 1} rows, want at most 8 files"),
                       ([(file, function + "_")], f"docs/architecture.md: decode/{file} has no {function}_()"),
                       ([(file[:-1] + "c", function)], f"docs/architecture.md: decode/{file[:-1]}c has no {function}()")):
        repo.walk(wrong)
        repo.commit()
        assert repo.check() == [why]


# ---- check-names ----

SAID = ["/* {} does it */\n", "// see {}\n", "/*\n * first\n * {}, and more\n */\n", "int x; /* of ({}) */\n"]


def test_names_of_what_is_gone_are_found(repo):
    """Comments and pages name functions, types and files that are there, and some that are not; strings are no prose."""
    repo.text["base/real.h"] = "typedef struct sl_thing sl_thing;\nint sl_do(sl_thing *t);\n#define SL_MOST 3\n"
    there = ["sl_thing", "sl_do()", "SL_MOST", "base/real.h", "real.h", "sl_NAME", "base/NAME.c", "sl_do_*", "sl_*"]
    want = []
    for i in range(12):
        gone = repo.rng.choice([f"sl_gone{i}", f"SL_GONE{i}", f"base/gone{i}.c", f"gone{i}.h", f"docs/gone{i}.md"])
        says, name = repo.rng.random() < 0.5, repo.rng.choice(there)
        path = repo.rng.choice([f"engine/said{i}.c", f"tests/unit/said{i}.h", f"docs/said{i}.md", "docs/said.md"])
        text = repo.text.setdefault(path, "")
        line = text.count("\n") + 1
        if path.endswith(".md"):
            repo.text[path] += f"`{gone if says else name}` is of use.\n"
        else:
            repo.text[path] += repo.rng.choice(SAID).format(gone if says else name) + (f'const char *s = "{gone}";\n' if not says else "")
        if says:
            where = f"{path}:{line}"
            want.append(f"{where}: no code has {gone}" if gone[:3] in ("sl_", "SL_") else f"{where}: there is no file {gone}")
    repo.commit()
    assert want and sorted(repo.check("check-names")) == sorted(want)
