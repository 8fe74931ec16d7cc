#!/usr/bin/env python3
"""Reads generated documents as text and answers every question by search. Exit status 1 if an answer of a document is
not the one that its text gives, if a key occurs twice, or if a fact stands after the answer that needs it.

    check_documents.py [--documents 200]
"""
import argparse
import pathlib
import random
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from documents import Maker, Sizes, random_plan  # noqa: E402
from evaluate import TASKS, plan  # noqa: E402
from language import CHATS, Language  # noqa: E402

STATEMENTS = [
    (r" The code of the (\w+ \w+) is (\d{4})\.", "code"), (r" (\w+ \w+) lives in (\w+)\.", "lives"),
    (r" (\w+ \w+) likes the colour (\w+)\.", "likes"), (r" (\w+ \w+) works as a (\w+)\.", "works"),
    (r" (\w+ \w+) owns a (\w+)\.", "owns"), (r" Let (\w+\d) = (\w+)\.", "let"),
]
QUESTIONS = [
    (r"What is the code of the (\w+ \w+)\?", "code", "The code of the {} is {}."),
    (r"Where does (\w+ \w+) live\?", "lives", "{} lives in {}."),
    (r"Which colour does (\w+ \w+) like\?", "likes", "{} likes the colour {}."),
    (r"What is the job of (\w+ \w+)\?", "works", "{} works as a {}."),
    (r"Which animal does (\w+ \w+) own\?", "owns", "{} owns a {}."),
]


def expected(question, facts):
    """The answer that the facts give."""
    several = re.fullmatch(r"What are the codes of the (.*)\?", question)
    if several:
        keys = re.split(r", the | and the ", several.group(1))
        return " ".join(f"The code of the {k} is {facts['code', k]}." for k in keys)
    value = re.fullmatch(r"What is the value of (\w+)\?", question)
    if value:
        chain = [value.group(1)]
        while ("let", chain[-1]) in facts:
            chain.append(facts["let", chain[-1]])
        return " = ".join(chain) + "."
    for pattern, kind, answer in QUESTIONS:
        m = re.fullmatch(pattern, question)
        if m:
            return answer.format(m.group(1), facts[kind, m.group(1)])
    raise ValueError(f"no such question: {question}")


def check(text, user, assistant, end):
    """Errors of one document, and its number of answers."""
    facts, errors, answers = {}, [], 0
    for turn in text.split(user)[1:]:
        said, _, answer = turn.partition(assistant)
        question = re.search(r"Question: (.*?\?)", said)
        for pattern, kind in STATEMENTS:
            for key, value in re.findall(pattern, said.replace(question.group(0), "") if question else said):
                if (kind, key) in facts:
                    errors.append(f"{kind} {key} occurs twice")
                facts[kind, key] = value
        if question:
            answers += 1
            right, given = expected(question.group(1), facts), answer.partition(end)[0]
            if given != "Answer: " + right:
                errors.append(f"{question.group(1)} {given!r} is not {right!r}")
    return errors, answers


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--documents", type=int, default=200)
    args = ap.parse_args()
    bad = answers = 0
    for family, chat in CHATS.items():
        lang = Language(family)
        sizes, maker, rng = Sizes(lang), Maker(lang, "cpu"), random.Random(1)
        user, assistant = "".join(chat["user"]), "".join(chat["assistant"])
        for i in range(args.documents):
            length = rng.choice([128, 256, 1024, 4096])
            task = rng.choice(list(TASKS))
            p = random_plan(sizes, rng, length) if i % 2 else plan(sizes, task, TASKS[task][2][0], max(length, 256), rng)
            for ids in maker.batch(p, 2, i)[0].tolist():
                errors, n = check(lang.decode(t for t in ids if t != lang.pad), user, assistant, chat["end"])
                answers += n
                bad += len(errors)
                for e in errors:
                    print(f"{family} document {i}: {e}")
    print(f"{answers} answers, {bad} errors")
    return 1 if bad or not answers else 0


if __name__ == "__main__":
    sys.exit(main())
