#!/usr/bin/env python3
"""Writes scores.jsonl: texts, answers and the scores that published programs give them, for tests/unit/eval/test_score.c.

    pip install rouge==1.0.1 rouge_score==0.1.2 rapidfuzz && tests/golden/eval/make_scores.py > tests/golden/eval/scores.jsonl

rouge_l is rouge_score's rougeL, rouge_words is rouge's rouge-l, code is rapidfuzz's ratio; the others are stated again here, from
the descriptions of SQuAD, RULER and LongBench. Texts are random, with a fixed seed, and some are chosen.
"""
import collections
import json
import random
import re
import string

import rapidfuzz.fuzz
import rouge
import rouge_score.rouge_scorer

SUMMARY = rouge.Rouge()
ROUGE = rouge_score.rouge_scorer.RougeScorer(["rougeL"], use_stemmer=False)
WORDS = ("the a an The A cat Cat dog don't e-mail U.S. 42 4.2 naïve Ärger ÉTÉ straße ΣΟΦΙΑ Москва «so» “an” a-b _x_ x_y 1,000 theory "
         "another, , . .. ; (the) [a] \u00a0 \n \t Paragraph 12 7 3 … — isn’t").split(" ")
CLASSES = ["Food", "Food and drink", "drink", "Animal", "animal", "Animal tale", "tale", "Number", "Num"]
CODE = ["int x = 1;", "return x", "# note", "// note", "`c`", "", "  y += x;", "for i in range(10):", "x=1"]
SAYS = ["The correct answer is (B)", "The correct answer is C.", "Answer: D", "answer is **A**", "(C)", "B", "b)", "c", "A cat sat.", "D: done",
        "I think (A) and (B)", "I think (B), yes (B)", "blue", "the blue one", "red and blue", "dark red", "none", "", "answer is a red thing",
        "The answer: (d) is it", "Because of that, the correct answer is (E)", "Answers vary. Answer:C", "E", "(E)", "B is right", "C\nbecause"]
CHOICES = ["red", "blue", "dark red", "green"]


def squad_words(text):
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def overlap(a, b):
    same = sum((collections.Counter(a) & collections.Counter(b)).values())
    return 2 * same / (len(a) + len(b)) if same else 0.0


def f1(text, answer):
    return overlap(squad_words(text), squad_words(answer))


def rouge_words(text, answer):
    try:
        return SUMMARY.get_scores([text], [answer], avg=True)["rouge-l"]["f"]
    except ValueError:
        return 0.0


def code(text, answer):
    line = next((l for l in text.lstrip("\n").split("\n") if "`" not in l and "#" not in l and "//" not in l), "")
    return round(rapidfuzz.fuzz.ratio(line, answer)) / 100


def classes(text, answer, names):
    found = [n for n in names if n in text]
    for n in found:
        if n in answer and n != answer:
            found.remove(n)
    return 1.0 / len(found) if answer in found else 0.0


def numbers(text, answer):
    found = re.findall(r"\d+", text, re.ASCII)
    return sum(n == answer for n in found) / len(found) if found else 0.0


def choice(text, choices):
    """The letter that a text chooses, by the four rules of eval/score.h."""
    last, text = chr(ord("A") + len(choices) - 1), text.replace("*", "")
    told = re.compile(r"answer *(?:is|:)[ :\n]*(?:\(([A-%s])\)|([A-%s])(?![A-Za-z0-9\x80-\U0010ffff]))" % (last, last))
    m = re.search(told.pattern.replace("answer", "[Aa][Nn][Ss][Ww][Ee][Rr]").replace("is|", "[Ii][Ss]|").replace(
        r"\(([A-%s])\)" % last, r"\(([A-%s%s])\)" % (last, "a-" + last.lower())), text)
    if m:
        return (m.group(1) or m.group(2)).upper()
    m = re.match(r"[ \t\r\n]*(?:\(([A-%s])\)|([A-%s])(?=$|[).:,;\r\n]))" % (last, last), text, re.I)
    if m:
        return (m.group(1) or m.group(2)).upper()
    named = [c for c in choices if c.lower() in text.lower()]
    whole = [c for c in named if not any(c != d and c.lower() in d.lower() for d in named)]
    if len(whole) == 1:
        return chr(ord("A") + choices.index(whole[0]))
    alone = set(x.upper() for x in re.findall(r"\(([A-%s])\)" % last, text, re.I))
    return alone.pop() if len(alone) == 1 else None


def show(scorer, text, answers, score, choices=()):
    print(json.dumps({"scorer": scorer, "text": text, "answers": answers, "choices": list(choices), "score": score}, ensure_ascii=False))


def main():
    r = random.Random(1)

    def text(most):
        return " ".join(r.choice(WORDS) for _ in range(r.randrange(most)))

    best = lambda f, t, answers: max(f(t, a) for a in answers)
    for _ in range(120):
        t, answers = text(14), [text(9) for _ in range(r.randrange(1, 4))]
        show("f1", t, answers, best(f1, t, answers))
        show("rouge_l", t, answers, best(lambda x, a: ROUGE.score(a, x)["rougeL"].fmeasure, t, answers))
        show("rouge_words", t, answers, best(rouge_words, t, answers))
        show("exact", t, answers, float(any(t.strip() == a.strip() for a in answers)))
        parts = [t[i:i + 3].swapcase() if r.random() < 0.5 else text(2) or "q" for i in (0, 2, 5)]
        parts = [p for p in parts if p.lower() == p.swapcase().lower() and "Σ" not in p.upper() and "SS" not in p.upper()] or ["cat"]
        show("contains", t, parts, best(lambda x, a: float(a.lower() in x.lower()), t, parts))
        show("contains_all", t, parts, sum(p.lower() in t.lower() for p in parts) / len(parts))
        show("numbers", t, ["12"], numbers(t, "12"))
    for _ in range(60):
        t, a = " ".join(r.choice(CLASSES + ["is"]) for _ in range(r.randrange(1, 5))), r.choice(CLASSES)
        show("classes", t, [a], classes(t, a, CLASSES), CLASSES)
        t, a = "\n" * r.randrange(2) + "\n".join(r.choice(CODE) for _ in range(r.randrange(1, 4))), r.choice(CODE)
        show("code", t, [a], code(t, a))
    for t in ["  Yes\n", "Yes", "yes"]:
        show("exact", t, ["Yes"], float(t.strip() == "Yes"))
    for t in SAYS:
        chosen = choice(t, CHOICES)
        for letter in "ABCD":
            show("choice", t, [letter], float(chosen == letter), CHOICES)


if __name__ == "__main__":
    main()
