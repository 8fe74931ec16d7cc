#!/usr/bin/env python3
"""Makes the chat goldens of the families of 2026: invented conversations, the prompts that templates make of them, and answers.

    tests/golden/chat/make_2026.py FOLDER

FOLDER holds what is not part of this project: encoding_dsv4.py of DeepSeek-V4, and as minimax3.jinja the chat template of
MiniMax-M3. Of GLM-5.3-Flash, Qwen3.8 and Hy4-preview there are templates in own/, which are ours: written from descriptions of
the formats, to render with another program than the one that is tested. Needs the Python package `transformers`, whose function
apply_chat_template renders them. Writes 2026.json into the folder of this file, in the format of cases.json (make.py). The
seed is fixed.
"""
import copy
import json
import pathlib
import sys

import make
from make_gqa import SPACES, render

OWN = make.HERE / "own"


class Maker(make.Maker):
    """Conversations with white space at the ends of texts, results in another order than the calls, and empty values."""

    def text(self, low=1):
        return self.rnd.choice(SPACES) + super().text(low) + self.rnd.choice(SPACES)

    def answer(self, think):
        text = self.text()
        return f"{think[0]}\n{self.text()}\n{think[1]}\n\n{text}" if think and self.rnd.random() < 0.3 else text

    def talk(self, think, developer=False):
        tools = self.tools() if self.rnd.random() < 0.6 else None
        messages = [{"role": "system", "content": self.rnd.choice(["", self.text()])}] if self.rnd.random() < 0.5 else []
        turns = self.rnd.randrange(1, 4)
        for turn in range(turns):
            messages.append({"role": "developer" if developer and self.rnd.random() < 0.2 else "user", "content": self.text()})
            for _ in range(self.rnd.randrange(0, 3) if tools else 0):
                n = self.rnd.randrange(1, 4)
                call = {"role": "assistant", "content": self.rnd.choice(["", self.answer(think)]), "tool_calls": self.calls(n)}
                if self.rnd.random() < 0.5:
                    call["reasoning_content"] = self.text(0)
                results = [{"role": "tool", "content": self.text(), "tool_call_id": f"c{i}"} for i in range(n)]
                self.rnd.shuffle(results)
                messages += [call] + results
            if turn < turns - 1:
                messages.append({"role": "assistant", "content": self.answer(think)})
                if self.rnd.random() < 0.5:
                    messages[-1]["reasoning_content"] = self.text()
            elif self.rnd.random() < 0.2:
                messages.append({"role": "user", "content": self.text()})
        return messages, tools


def dsv4_case(enc, maker, case):
    case["thinking"], case["keep"] = maker.rnd.random() < 0.6, maker.rnd.random() < 0.3
    case["messages"], tools = maker.talk(None, developer=True)
    theirs = copy.deepcopy(case["messages"])
    if tools:
        if theirs[0]["role"] != "system":
            theirs.insert(0, {"role": "system", "content": ""})
        case["tools"] = theirs[0]["tools"] = tools
    effort = maker.rnd.choice([None, None, "high", "max"])
    if effort:
        case["effort"] = effort
    case["prompt"] = enc.encode_messages(theirs, thinking_mode="thinking" if case["thinking"] else "chat", drop_thinking=not case["keep"],
                                         reasoning_effort=effort)
    return case


def template_case(template, think, modes, maker, case):
    """modes: (what our request says, what the template gets)."""
    ours, theirs = maker.rnd.choice(modes)
    case.update(ours)
    case["messages"], tools = maker.talk(think)
    if tools:
        case["tools"] = tools
    case["prompt"] = render(template, case, **theirs)
    return case


THINK = {"thinking": True}
HY4_BEGIN = "<｜hy_end:opensource｜><｜hy_start:opensource｜>assistant<｜hy_middle:opensource｜><think:opensource>"
TEMPLATES = {
    "minimax3": (("<mm:think>", "</mm:think>"), [(THINK, {"thinking_mode": "enabled"}), ({"thinking": False}, {"thinking_mode": "disabled"}),
                                                 ({"thinking": "adaptive"}, {})]),
    "glm53": (("<think>", "</think>"), [(THINK, {}), ({**THINK, "effort": "low"}, {"reasoning_effort": "low"}),
                                        ({**THINK, "effort": "high"}, {"reasoning_effort": "high"})]),
    "qwen38": (("<think>", "</think>"), [(THINK, {}), ({"thinking": False}, {"enable_thinking": False}),
                                         ({**THINK, "effort": "low"}, {"reasoning_effort": "low"}),
                                         ({**THINK, "effort": "medium"}, {"reasoning_effort": "medium"})]),
    "hy4": (None, [(THINK, {}), ({"thinking": False}, {"reasoning_effort": "no_think"})]),
}


# ---- answers: what a template writes for a turn of the assistant is read back ----

PARAMETERS = {"type": "object", "properties": {
    "s": {"type": "string"}, "n": {"type": "number"}, "i": {"type": "integer"}, "b": {"type": "boolean"},
    "l": {"type": "array", "items": {"$ref": "#/$defs/thing"}}, "o": {"$ref": "#/$defs/thing"},
    "m": {"type": "object", "additionalProperties": {"type": "string"}}},
    "$defs": {"thing": {"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "number"},
                                                         "l": {"type": "array", "items": {"type": "string"}},
                                                         "o": {"$ref": "#/$defs/thing"}}}}}
TOOL = [{"type": "function", "function": {"name": "fn", "parameters": PARAMETERS}}]


class Values(Maker):
    def thing(self, depth=0):
        made = {}
        if self.rnd.random() < 0.7:
            made["s"] = self.plain()
        if self.rnd.random() < 0.5:
            made["n"] = self.rnd.choice(make.NUMBERS)
        if self.rnd.random() < 0.4:
            made["l"] = [self.plain() for _ in range(self.rnd.randrange(3))]
        if depth < 3 and self.rnd.random() < 0.4:
            made["o"] = self.thing(depth + 1)
        return made

    def plain(self):
        """A text as models write it: no line break at its ends, and at times one that looks like another type."""
        return self.rnd.choice([make.Maker.text(self).strip() or "x", "12", "true", "null", "[1]", '{"a": 1}', "a\nb"])

    def arguments(self):
        made = {"s": self.plain(), "n": self.rnd.choice(make.NUMBERS), "i": self.rnd.randrange(-9, 99), "b": self.rnd.random() < 0.5,
                "l": [self.thing() for _ in range(self.rnd.randrange(3))], "o": self.thing(), "m": {"k": "1", "item": "2"}}
        keys = [k for k in made if self.rnd.random() < 0.6]
        self.rnd.shuffle(keys)
        return {k: made[k] for k in keys}


def answer_case(rendered_turn, maker, case):
    """rendered_turn(message): the text that the model would have written."""
    case["thinking"], case["tools"] = True, TOOL
    calls = [{"function": {"name": "fn", "arguments": maker.arguments()}} for _ in range(maker.rnd.randrange(3))]
    reasoning, content = maker.plain(), maker.rnd.choice(["", maker.plain()])
    case["text"] = rendered_turn({"role": "assistant", "content": content, "reasoning_content": reasoning, "tool_calls": calls})
    message = case["message"] = {"role": "assistant", "content": content or (None if calls else ""), "reasoning_content": reasoning}
    if calls:
        message["tool_calls"] = [{"type": "function", "function": c["function"]} for c in calls]
    return case


def turn_of(template, opening, closing):
    def rendered(message):
        messages = [{"role": "user", "content": "u"}, message]
        text = render(template, {"messages": [{**m, **({"tool_calls": [{"function": {**c["function"], "arguments": json.dumps(c["function"]["arguments"])}}
                                                                       for c in m["tool_calls"]]} if m.get("tool_calls") else {})} for m in messages],
                                 "tools": TOOL})
        text = text[text.rindex(opening) + len(opening):]
        return text[:text.rindex(closing)]
    return rendered


def main():
    folder, maker, prompts, answers = pathlib.Path(sys.argv[1]), Maker(17), [], []
    enc = make.load_module(folder / "encoding_dsv4.py")
    templates = {name: ((folder if name == "minimax3" else OWN) / f"{name}.jinja").read_text(encoding="utf-8") for name in TEMPLATES}
    for i in range(30):
        prompts.append(dsv4_case(enc, maker, {"name": f"dsv4-{i}", "format": "dsv4"}))
    for name, (think, modes) in TEMPLATES.items():
        for i in range(20):
            prompts.append(template_case(templates[name], think, modes, maker, {"name": f"{name}-{i}", "format": name, "keep": False}))
    values = Values(19)

    def dsv4_turn(message):
        calls = [{"function": {"name": c["function"]["name"], "arguments": json.dumps(c["function"]["arguments"], ensure_ascii=False)}}
                 for c in message["tool_calls"]]
        theirs = [{"role": "user", "content": "u"}, {**message, "tool_calls": calls}]
        text = enc.encode_messages(theirs, thinking_mode="thinking", drop_thinking=False)
        return text[text.rindex("<think>") + 7:].removesuffix(enc.eos_token)
    turns = {"dsv4": dsv4_turn,
             "minimax3": turn_of(templates["minimax3"], "]~b]ai\n<mm:think>", "[e~[\n]~b]ai"),
             "glm53": turn_of(templates["glm53"], "<|user|>u<|assistant|><think>", "<|assistant|>"),
             "qwen38": turn_of(templates["qwen38"], "u<|im_end|>\n<|im_start|>assistant\n<think>\n", "<|im_end|>\n<|im_start|>"),
             "hy4": turn_of(templates["hy4"], "u" + HY4_BEGIN, HY4_BEGIN)}
    for name, turn in turns.items():
        for i in range(20):
            answers.append(answer_case(turn, values, {"name": f"{name}-{i}", "format": name}))
    text = json.dumps({"prompts": prompts, "answers": answers}, ensure_ascii=False, indent=0, separators=(",", ":"))
    (make.HERE / "2026.json").write_text(text + "\n", encoding="utf-8")
    print(len(prompts), "prompts,", len(answers), "answers,", len(text.encode()), "bytes")


if __name__ == "__main__":
    main()
