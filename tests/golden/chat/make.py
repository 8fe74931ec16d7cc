#!/usr/bin/env python3
"""Makes the chat goldens: invented conversations, and the prompts that the models' own encoders make of them.

    tests/golden/chat/make.py --dsv32 encoding_dsv32.py --glm chat_template.jinja --glm45 chat_template.jinja

The encoders are not part of this project: take encoding_dsv32.py from the repository of DeepSeek-V3.2 and the chat templates from
those of GLM-5 and GLM-4.6. Needs the Python package `transformers` (for its Jinja settings). Writes cases.json into the
folder of this file: {name, format, thinking, keep, messages, tools, response_format, prompt}, and for `dsv32` answers
{name, format, thinking, text, message}. The seed is fixed.
"""
import argparse
import copy
import importlib.util
import json
import pathlib
import random

from transformers.utils.chat_template_utils import _compile_jinja_template

HERE = pathlib.Path(__file__).resolve().parent
WORDS = ["hello", "the weather", "  spaced ", "line\nbreak", "你好", "😀", '"quoted"', "back\\slash", "<tag>", "\t", "a/b", "é", "</x>", "1.5", "{}"]
NUMBERS = [0, 1, -5, 2**53, 0.1, 1.0, 1e16, 1e22, 1.5e-7, 123456789.125, 1e-5, 0.0001, -2.5, 1 / 3, 5e-324, 1.7976931348623157e308, 1e15, -0.0, 100.0]


class Maker:
    def __init__(self, seed):
        self.rnd = random.Random(seed)

    def text(self, low=1):
        return " ".join(self.rnd.choice(WORDS) for _ in range(self.rnd.randrange(low, 6)))

    def value(self, depth=0):
        kind = self.rnd.randrange(7 if depth < 2 else 5)
        if kind < 2:
            return self.rnd.choice(NUMBERS)
        if kind == 2:
            return self.rnd.choice([True, False, None])
        if kind < 5:
            return self.text(0)
        if kind == 5:
            return [self.value(depth + 1) for _ in range(self.rnd.randrange(4))]
        return {self.text(): self.value(depth + 1) for _ in range(self.rnd.randrange(4))}

    def arguments(self):
        return {self.rnd.choice("abcde") + str(i): self.value() for i in range(self.rnd.randrange(4))}

    def tools(self):
        properties = {"a": {"type": "string"}, "b": {"type": "number", "default": self.value(2)}}
        return [{"type": "function", "function": {"name": f"fn_{i}", "description": self.text(),
                                                  "parameters": {"type": "object", "properties": properties, "required": ["a"]}}}
                for i in range(self.rnd.randrange(1, 3))]

    def calls(self, n):
        return [{"type": "function", "id": f"c{i}", "function": {
            "name": f"fn_{i}", "arguments": json.dumps(self.arguments(), ensure_ascii=self.rnd.random() < 0.5)}} for i in range(n)]

    def conversation(self, developer):
        messages, tools = [], self.tools() if self.rnd.random() < 0.6 else None
        if self.rnd.random() < 0.5:
            messages.append({"role": "system", "content": self.text()})
        turns = self.rnd.randrange(1, 4)
        for turn in range(turns):
            last = turn == turns - 1
            role = "developer" if developer and last and self.rnd.random() < 0.2 else "user"
            messages.append({"role": role, "content": self.text()})
            for _ in range(self.rnd.randrange(0, 3) if tools else 0):
                n = self.rnd.randrange(1, 4)
                answer = {"role": "assistant", "content": self.rnd.choice(["", self.text()]), "tool_calls": self.calls(n)}
                if self.rnd.random() < 0.7:
                    answer["reasoning_content"] = self.text()
                messages.append(answer)
                messages += [{"role": "tool", "content": self.text(), "tool_call_id": f"c{i}"} for i in range(n)]
            if not last:
                answer = {"role": "assistant", "content": self.text()}
                if self.rnd.random() < 0.5:
                    answer["reasoning_content"] = self.text()
                messages.append(answer)
        return messages, tools


def parsed_arguments(messages):
    messages = copy.deepcopy(messages)
    for msg in messages:
        for call in msg.get("tool_calls", []):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return messages


def load_module(path):
    spec = importlib.util.spec_from_file_location("encoding_dsv32", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def dsv32_case(enc, make, name):
    case = {"name": name, "format": "dsv32", "thinking": make.rnd.random() < 0.6, "keep": make.rnd.random() < 0.3}
    case["messages"], tools = make.conversation(True)
    theirs = copy.deepcopy(case["messages"])
    schema = {"type": "object", "n": 1.0} if make.rnd.random() < 0.2 else None
    if tools or schema:
        if theirs[0]["role"] != "system":
            theirs.insert(0, {"role": "system", "content": ""})
        if tools:
            case["tools"] = theirs[0]["tools"] = tools
        if schema:
            theirs[0]["response_format"] = schema
            case["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    case["prompt"] = enc.encode_messages(theirs, thinking_mode="thinking" if case["thinking"] else "chat", drop_thinking=not case["keep"])
    return case


def glm_case(template, make, name, spaced):
    case = {"name": name, "format": "glm45" if spaced else "glm", "thinking": make.rnd.random() < 0.6}
    case["keep"] = not spaced and make.rnd.random() < 0.3
    case["messages"], tools = make.conversation(False)
    if tools:
        case["tools"] = tools
    extra = {"clear_thinking": False} if case["keep"] else {}
    if not case["thinking"]:
        extra["enable_thinking"] = False
    case["prompt"] = template.render(messages=parsed_arguments(case["messages"]), tools=tools, add_generation_prompt=True, **extra)
    return case


def answer_case(enc, make, name):
    case = {"name": name, "format": "dsv32", "thinking": make.rnd.random() < 0.5, "tools": make.tools()}
    text = (make.text() + "</think>" if case["thinking"] else "") + make.rnd.choice(["", make.text()])
    calls = [{"name": c["function"]["name"], "arguments": c["function"]["arguments"]} for c in make.calls(make.rnd.randrange(3))]
    if calls:
        rendered = "\n".join(enc.tool_call_template.format(dsml_token=enc.dsml_token, name=c["name"], arguments=enc.encode_arguments_to_dsml(c))
                             for c in calls)
        text += "\n\n" + enc.tool_calls_template.format(dsml_token=enc.dsml_token, tool_calls=rendered)
    message = enc.parse_message_from_completion_text(text + enc.eos_token, "thinking" if case["thinking"] else "chat")
    case["text"] = text
    case["message"] = {"role": "assistant", "content": message["content"] or (None if calls else "")}
    if message["reasoning_content"]:
        case["message"]["reasoning_content"] = message["reasoning_content"]
    if message["tool_calls"]:
        case["message"]["tool_calls"] = message["tool_calls"]
    return case


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("dsv32", "glm", "glm45"):
        ap.add_argument(f"--{name}", required=True, type=pathlib.Path)
    args = ap.parse_args()
    make, enc = Maker(3), load_module(args.dsv32)
    glm, glm45 = (_compile_jinja_template(p.read_text(encoding="utf-8")) for p in (args.glm, args.glm45))
    prompts = [dsv32_case(enc, make, f"dsv32-{i}") for i in range(40)]
    prompts += [glm_case(glm, make, f"glm-{i}", False) for i in range(30)] + [glm_case(glm45, make, f"glm45-{i}", True) for i in range(20)]
    answers = [answer_case(enc, make, f"answer-{i}") for i in range(40)]
    text = json.dumps({"prompts": prompts, "answers": answers}, ensure_ascii=False, indent=0, separators=(",", ":"))
    (HERE / "cases.json").write_text(text + "\n", encoding="utf-8")
    print(len(prompts), "prompts,", len(answers), "answers,", len(text.encode()), "bytes")


if __name__ == "__main__":
    main()
