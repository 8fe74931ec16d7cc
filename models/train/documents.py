"""Generated documents with questions, made as tensors.

A sequence is a chat. In the plain form the user's first turn is a text of many statements and a question, and every
further turn is one more question about the same text. In the early form every turn of the user is a part of the text that
has its question at the start or in the middle, so that the model meets the question long before it has to answer it.

A Plan says how many statements and questions of every kind a batch has; it is the same for all rows of the batch, so every
row has the same number of tokens. What the statements say and their order are random in every row. All keys are unique
within a document, so every question has one answer, and documents with many statements of one kind are full of near misses.

A batch is a function of its plan, its number of rows and its seed.
"""
import dataclasses

import torch

from language import (ANSWER, CHAIN_QUESTION, FACTS, FILLER, LATER_QUESTION, LINK, PERSON, QUESTION, REMINDER, ROOT, SEVERAL,
                      TEXT)

DEPTH = 4  # statements in a chain of variables
TEXT_GRADE, ANSWER_GRADE, VALUE_GRADE = 0, 1, 2
VALUES = {"n", "m", "city", "colour", "job", "animal"}


@dataclasses.dataclass
class Plan:
    """Numbers of statements, and the questions as a list of kinds: a key of FACTS, "chain1".., "codes2" or "codes3"."""

    length: int
    facts: dict
    chains: int
    filler: list
    questions: list
    early: bool = False
    repeat: bool = False  # no document: words, then the same words again from another one on
    at_start: bool = False  # early form: every question opens its turn

    def statements(self):
        return sum(self.facts.values()) + self.chains * DEPTH + sum(self.filler)


class Sizes:
    """Tokens of every statement and question."""

    def __init__(self, lang):
        self.turn = len(lang.chat["user"]) + len(lang.chat["assistant"]) + 1
        self.fact = {k: len(lang.parse(f[0])) for k, f in FACTS.items()}
        self.chain = len(lang.parse(ROOT)) + (DEPTH - 1) * len(lang.parse(LINK))
        self.filler = [len(lang.parse(f)) for f in FILLER]
        self.question = {k: len(lang.parse(f[1])) + len(lang.parse(f[2])) for k, f in FACTS.items()}
        for n, text in SEVERAL.items():
            self.question[f"codes{n}"] = len(lang.parse(text)) + n * len(lang.parse(FACTS["code"][2]))
        for d in range(1, DEPTH + 1):
            self.question[f"chain{d}"] = len(lang.parse(CHAIN_QUESTION)) + 3 * d + 3
        for k in self.question:
            self.question[k] += self.turn + 4  # "Question:" and "Answer:"
        self.early = 2 + len(lang.parse(REMINDER))


def _share(rng, mixture):
    """Shares of the text: codes, persons, chains, filler."""
    if mixture == "mixed":
        w = [rng.random() ** 2 for _ in range(4)]
        return [x / sum(w) for x in w]
    return {"codes": [1, 0, 0, 0], "persons": [0, 1, 0, 0], "chains": [0, 0, 0.8, 0.2], "sparse": [0, 0, 0, 1]}[mixture]


def random_plan(sizes, rng, length):
    """A plan for training. rng: random.Random."""
    early = rng.random() < 0.3
    most = rng.choice([1, 2, 3 + length // 256])  # early: questions, and so turns; few of them are far from their answers
    mixture = rng.choice(["mixed", "mixed", "mixed", "codes", "persons", "chains", "sparse"])
    room = length - 8
    share = rng.uniform(0.4, 0.7) if length <= 512 else rng.uniform(0.2, 0.4)
    text = int(room * (1 - share))
    codes, persons, chains, _ = (int(text * w) for w in _share(rng, mixture))
    facts = {"code": min(codes // sizes.fact["code"], 1000)}
    for k in PERSON:
        facts[k] = min(persons // 4 // sizes.fact[k], 250)
    n_chains = min(chains // sizes.chain, 240 // DEPTH)
    if mixture == "sparse":
        facts, n_chains = {"code": 3, **{k: 1 for k in PERSON}}, rng.randint(0, 1)
    elif not n_chains and facts["code"] < 3:
        facts["code"] = 3
    used = _used(sizes, facts, n_chains)
    questions, left = [], {"code": facts["code"], "chain": n_chains * 2, **{k: facts.get(k, 0) for k in PERSON}}
    limit = room - max(text, used) if mixture != "sparse" else min(room - used, 400)
    while True:
        kind = rng.choice([k for k, n in left.items() if n > 0] or ["none"])
        if kind == "none":
            break
        name = kind
        if kind == "chain":
            name = f"chain{rng.randint(1, DEPTH)}"
        elif kind == "code" and facts["code"] >= 3 and rng.random() < 0.25:
            name = f"codes{rng.choice([2, 3])}"
        cost = sizes.question[name] + (sizes.early if early else 0)
        if early and len(questions) >= most:
            break
        if cost > limit:
            left[kind] = 0
            continue
        limit -= cost
        left[kind] -= 1
        questions.append(name)
        used += cost
    return Plan(length, facts, n_chains, fill_up(sizes, room - used, rng), questions, early)


def _used(sizes, facts, n_chains):
    return sum(n * sizes.fact[k] for k, n in facts.items()) + n_chains * sizes.chain


def fill_up(sizes, room, rng):
    """Numbers of filler sentences that together have at most `room` tokens."""
    filler = [0] * len(FILLER)
    while room >= max(sizes.filler):
        i = rng.randrange(len(FILLER))
        filler[i] += 1
        room -= sizes.filler[i]
    return filler


class Maker:
    """Makes batches of a language on a device."""

    def __init__(self, lang, device):
        self.lang, self.device = lang, device
        self.gen = torch.Generator(device=device)
        self.words = {k: torch.tensor(v, device=device) for k, v in lang.words.items()}

    def rand(self, *shape):
        return torch.rand(*shape, generator=self.gen, device=self.device, dtype=torch.float64)

    def choose(self, name, b, n):
        """[b][n] random words."""
        words = self.words[name]
        return words[torch.randint(len(words), (b, n), generator=self.gen, device=self.device)]

    def distinct(self, b, n, limit):
        """[b][n] distinct numbers below limit."""
        return self.rand(b, limit).argsort(-1)[:, :n]

    def fill(self, template, slots, b, n):
        """A template's tokens [b][n][len]. slots: name to [b][n] ids."""
        out = torch.empty(b, n, len(template), dtype=torch.long, device=self.device)
        for i, item in enumerate(template):
            out[:, :, i] = slots[item] if isinstance(item, str) else item
        return out

    # ---- statements ----

    def codes(self, b, n):
        key = self.distinct(b, n, len(self.words["quality"]) * len(self.words["thing"]))
        things = len(self.words["thing"])
        return {"quality": self.words["quality"][key // things], "thing": self.words["thing"][key % things],
                "n": self.choose("n", b, n), "m": self.choose("m", b, n)}

    def persons(self, b, counts):
        """Slots of each kind of statement about persons; a person may have one of each kind."""
        pool = max(4, 3 * max(counts.values()) // 2)
        lasts = len(self.words["last"])
        who = self.distinct(b, pool, len(self.words["first"]) * lasts)
        value = {"lives": "city", "likes": "colour", "works": "job", "owns": "animal"}
        out = {}
        for kind, n in counts.items():
            one = who.gather(1, self.distinct(b, n, pool))
            out[kind] = {"first": self.words["first"][one // lasts], "last": self.words["last"][one % lasts],
                         value[kind]: self.choose(value[kind], b, n)}
        return out

    def chains(self, b, n):
        """Names [b][n][DEPTH] of variables and their digits; the value of the first one."""
        name = self.distinct(b, n * DEPTH, len(self.words["variable"]) * 10).view(b, n, DEPTH)
        return {"variable": self.words["variable"][name // 10], "d": self.words["d"][name % 10],
                "n": self.choose("n", b, n), "m": self.choose("m", b, n)}

    def repeats(self, length, b):
        """Random words, then all of them once more from a random one on: teaches looking up what followed a word."""
        n = (length - 1) // 2
        first = self.lang.n_added + 256 + self.distinct(b, n, self.lang.n_tokens - self.lang.n_added - 256)
        turn = torch.randint(n, (b, 1), generator=self.gen, device=self.device)
        again = first.gather(1, (torch.arange(n, device=self.device) + turn) % n)
        ids = torch.full((b, length), self.lang.pad, dtype=torch.long, device=self.device)
        ids[:, 0] = self.lang.bos
        ids[:, 1:n + 1], ids[:, n + 1:2 * n + 1] = first, again
        grades = torch.zeros(b, length, dtype=torch.uint8, device=self.device)
        grades[:, n + 2:2 * n + 1] = ANSWER_GRADE
        return ids, grades

    # ---- a batch ----

    def batch(self, plan, b, seed):
        """ids, grades: [b][plan.length]. grades tell what a token is: text, answer, or the value in an answer."""
        self.gen.manual_seed(seed)
        if plan.repeat:
            return self.repeats(plan.length, b)
        return _Batch(self, plan, b).make()


class _Batch:
    """Makes one batch: lists segments, each with a sort key, and packs them."""

    def __init__(self, maker, plan, b):
        self.m, self.plan, self.b, self.lang = maker, plan, b, maker.lang
        self.segments = []  # (ids [b][n][len], grades [len], keys [b][n])
        self.turns = len(plan.questions) if plan.early else 1

    def add(self, template, slots, keys, grades=None):
        n = keys.shape[1]
        grades = torch.tensor(grades or [TEXT_GRADE] * len(template), dtype=torch.uint8, device=self.m.device)
        self.segments.append((self.m.fill(template, slots, self.b, n), grades, keys))

    def make(self):
        self.facts = {}
        if self.plan.facts.get("code"):
            self.facts["code"] = self.m.codes(self.b, self.plan.facts["code"])
        person = {k: self.plan.facts[k] for k in PERSON if self.plan.facts.get(k)}
        if person:
            self.facts.update(self.m.persons(self.b, person))
        self.keys = {k: self.m.rand(self.b, self.plan.facts[k]) for k in self.facts}
        if self.plan.chains:
            self.chain = self.m.chains(self.b, self.plan.chains)
            self.chain_keys = self.m.rand(self.b, self.plan.chains, DEPTH)
        self.ask()
        self.tell()
        return self.pack()

    def tell(self):
        """The statements, after the questions have chosen theirs (see before())."""
        for kind, slots in self.facts.items():
            self.add(self.lang.parse(FACTS[kind][0]), slots, self.inner(self.keys[kind]))
        if self.plan.chains:
            c = self.chain
            for d in range(DEPTH):
                slots = {"variable": c["variable"][..., d], "d": c["d"][..., d], "n": c["n"], "m": c["m"]}
                if d:
                    slots |= {"parent": c["variable"][..., d - 1], "D": c["d"][..., d - 1]}
                self.add(self.lang.parse(LINK if d else ROOT), slots, self.inner(self.chain_keys[..., d]))
        for text, n in zip(FILLER, self.plan.filler):
            if n:
                template = self.lang.parse(text)
                slots = {s: self.m.choose(s, self.b, n) for s in template if isinstance(s, str)}
                self.add(template, slots, self.inner(self.m.rand(self.b, n)))

    def inner(self, keys):
        """Moves keys in (0, 1) away from the borders of turns, where the questions are."""
        part = (keys * self.turns).floor()
        return (part + 0.001 + 0.998 * (keys * self.turns - part)) / self.turns

    def before(self, keys, chosen, turn):
        """Moves the chosen statements (index [b][n] of keys [b][N]) before the end of a turn."""
        end = (turn + 1) / self.turns
        at = keys.gather(1, chosen)
        keys.scatter_(1, chosen, torch.where(at >= end, at * end, at))

    def ask(self):
        head = [self.lang.bos] + self.lang.parse(self.lang.chat["user"], TEXT)
        self.add(head, {}, self.constant(-1))
        taken = {}
        for i, kind in enumerate(self.plan.questions):
            slots, question, answer = self.question(kind, i, taken)
            if self.plan.early:
                self.early_turn(i, slots, question, answer)
            else:
                first = self.lang.parse(LATER_QUESTION) if i == 0 else self.lang.parse(self.lang.chat["user"], QUESTION)
                key = self.constant(1) if i == 0 else 2 + self.m.rand(self.b, 1)
                self.turn_end(first + question, answer, slots, key)

    def early_turn(self, i, slots, question, answer):
        start = (i + 0.0002) / self.turns
        anywhere = (i + 0.001 + 0.998 * self.m.rand(self.b, 1)) / self.turns
        at_start = (self.m.rand(self.b, 1) < 0.5) | self.plan.at_start
        self.add(self.lang.parse(LATER_QUESTION) + question, slots, torch.where(at_start, start, anywhere))
        if i:
            self.add(self.lang.parse(self.lang.chat["user"], TEXT), {}, self.constant((i + 0.0001) / self.turns))
        self.turn_end(self.lang.parse(REMINDER), answer, slots, self.constant((i + 0.9999) / self.turns))

    def turn_end(self, text, answer, slots, key):
        opening = text + self.lang.parse(self.lang.chat["assistant"])
        answer = self.lang.parse(ANSWER) + answer
        value = [VALUE_GRADE if isinstance(t, str) and t.rstrip("0123456789") in VALUES | {"parent", "D"} else ANSWER_GRADE
                 for t in answer]
        self.add(opening + answer + [self.lang.end], slots, key, [TEXT_GRADE] * len(opening) + value + [ANSWER_GRADE])

    def constant(self, value):
        return torch.full((self.b, 1), float(value), dtype=torch.float64, device=self.m.device)

    def pick(self, name, count, taken, n=1):
        """[b][n] statements that no earlier question has asked about, as far as there are enough."""
        if name not in taken:
            taken[name] = (self.m.distinct(self.b, count, count), 0)
        order, at = taken[name]
        taken[name] = (order, at + n)
        return order[:, [(at + i) % count for i in range(n)]]

    def question(self, kind, turn, taken):
        """Slots and the templates of question and answer."""
        if kind.startswith("chain"):
            return self.chain_question(int(kind[5:]), turn, taken)
        if kind.startswith("codes"):
            return self.several_question(int(kind[5:]), turn, taken)
        chosen = self.pick(kind, self.plan.facts[kind], taken)
        self.before(self.keys[kind], chosen, turn)
        slots = {k: v.gather(1, chosen) for k, v in self.facts[kind].items()}
        return slots, self.lang.parse(FACTS[kind][1]), self.lang.parse(FACTS[kind][2])

    def several_question(self, n, turn, taken):
        chosen = self.pick("code", self.plan.facts["code"], taken, n)
        self.before(self.keys["code"], chosen, turn)
        slots, answer = {}, []
        for i in range(n):
            slots |= {f"{k}{i}": v.gather(1, chosen[:, i:i + 1]) for k, v in self.facts["code"].items()}
            answer += [f"{t}{i}" if isinstance(t, str) else t for t in self.lang.parse(FACTS["code"][2])]
        return slots, self.lang.parse(SEVERAL[n]), answer

    def chain_question(self, depth, turn, taken):
        chosen = self.pick("chain", self.plan.chains, taken)
        for d in range(depth):
            self.before(self.chain_keys[..., d], chosen, turn)
        c = self.chain
        slots = {"n": c["n"].gather(1, chosen), "m": c["m"].gather(1, chosen)}
        equals = self.lang.parse(" =")
        answer = []
        for i, d in enumerate(reversed(range(depth))):  # the variable asked for first, then what it is equal to
            name, digit = ("parent", "D") if i else ("variable", "d")
            index = str(i) if i else ""
            slots[name + index] = c["variable"][..., d].gather(1, chosen)
            slots[digit + index] = c["d"][..., d].gather(1, chosen)
            answer += [name + index, digit + index] + equals
        return slots, self.lang.parse(CHAIN_QUESTION), answer + ["n", "m"] + self.lang.parse(".")

    def pack(self):
        """Sorts the segments of every row by key and joins them."""
        longest = max(s[0].shape[2] for s in self.segments)
        ids, grades, keys, lengths = [], [], [], []
        for seg, grade, key in self.segments:
            n, size = seg.shape[1:]
            ids.append(torch.nn.functional.pad(seg, (0, longest - size)))
            grades.append(torch.nn.functional.pad(grade, (0, longest - size)).expand(self.b, n, longest))
            keys.append(key)
            lengths.append(torch.full((self.b, n), size, device=self.m.device))
        order = torch.cat(keys, 1).argsort(-1)
        wide = order[..., None].expand(-1, -1, longest)
        ids, grades = torch.cat(ids, 1).gather(1, wide), torch.cat(grades, 1).gather(1, wide)
        lengths = torch.cat(lengths, 1).gather(1, order)
        within = torch.arange(longest, device=self.m.device)
        at = (lengths.cumsum(1) - lengths)[..., None] + within
        end = self.plan.length
        at = torch.where((within < lengths[..., None]) & (at < end), at, end).view(self.b, -1)
        out = torch.full((self.b, end + 1), self.lang.pad, dtype=torch.long, device=self.m.device)
        out.scatter_(1, at, ids.reshape(self.b, -1))
        marks = torch.zeros(self.b, end + 1, dtype=torch.uint8, device=self.m.device)
        marks.scatter_(1, at, grades.reshape(self.b, -1))
        return out[:, :end].contiguous(), marks[:, :end].contiguous()
