#!/usr/bin/env python3
"""Makes the chat goldens of Llama 3 and Qwen: invented conversations, and the prompts that the models' templates make of them.

    tests/golden/chat/make_gqa.py FOLDER

FOLDER holds the chat templates, which are not part of this project, as llama3.jinja (Llama 3.0), llama31.jinja (Llama 3.1 or
3.3), chatml.jinja (Qwen 2), qwen25.jinja and qwen3.jinja: the value of chat_template in the tokenizer_config.json of the
instruction-tuned models. Needs the Python package `transformers`, whose function apply_chat_template renders them here. Writes
gqa.json into the folder of this file, in the format of cases.json (make.py); it has no answers. The seed is fixed.
"""
import json
import pathlib
import sys

from transformers.utils.chat_template_utils import render_jinja_template

import make

SPACES = ["", " ", "\n", "\u00a0", "\u3000", "\u2028 ", "\x1f", "\u200b"]  # str.strip() removes all but the last


class Maker(make.Maker):
    def text(self, low=1):
        return self.rnd.choice(SPACES) + super().text(low) + self.rnd.choice(SPACES)

    def answer(self):
        """Content, sometimes with its reasoning inside."""
        text = self.text()
        return f"<think>\n{self.text()}\n</think>\n\n{text}" if self.rnd.random() < 0.3 else text

    def turn(self, messages, tools, one_call):
        messages.append({"role": "user", "content": self.text()})
        for _ in range(self.rnd.randrange(0, 3) if tools else 0):
            n = 1 if one_call else self.rnd.randrange(1, 4)
            call = {"role": "assistant", "content": self.rnd.choice(["", self.answer()]), "tool_calls": self.calls(n)}
            if self.rnd.random() < 0.5:
                call["reasoning_content"] = self.rnd.choice(["", "\n"]) + self.text()
            messages.append(call)
            messages += [{"role": "tool", "content": self.text(), "tool_call_id": f"c{i}"} for i in range(n)]

    def talk(self, with_tools, one_call):
        tools = self.tools() if with_tools and self.rnd.random() < 0.6 else None
        messages = [{"role": "system", "content": self.text()}] if self.rnd.random() < 0.5 else []
        turns = self.rnd.randrange(1, 4)
        for turn in range(turns):
            self.turn(messages, tools, one_call)
            if turn < turns - 1 or self.rnd.random() < 0.1:
                messages.append({"role": "assistant", "content": self.answer()})
                if self.rnd.random() < 0.3:
                    messages[-1]["reasoning_content"] = self.text()
            if self.rnd.random() < 0.1:
                messages.append({"role": "system", "content": self.text()})
        if self.rnd.random() < 0.1:
            messages.append({"role": "user", "content": "<tool_response>" + self.text() + "</tool_response>"})
        return messages, tools


def render(template, case, **extra):
    messages = make.parsed_arguments(case["messages"])
    prompts, _ = render_jinja_template(conversations=[messages], tools=case.get("tools"), chat_template=template,
                                       add_generation_prompt=True, bos_token="<|begin_of_text|>", **extra)
    return prompts[0]


def main():
    folder, maker, cases = pathlib.Path(sys.argv[1]), Maker(13), []
    for name, count, tools in [("llama3", 8, False), ("llama31", 30, True), ("chatml", 8, False), ("qwen25", 25, True), ("qwen3", 40, True)]:
        template = (folder / f"{name}.jinja").read_text(encoding="utf-8")
        for i in range(count):
            case = {"name": f"{name}-{i}", "format": name, "thinking": name == "qwen3" and maker.rnd.random() < 0.6, "keep": False}
            case["messages"], made = maker.talk(tools, name == "llama31")
            if made:
                case["tools"] = made
            extra = {"enable_thinking": False} if name == "qwen3" and not case["thinking"] else {}
            cases.append({**case, "prompt": render(template, case, **extra)})
    text = json.dumps({"prompts": cases}, ensure_ascii=False, indent=0, separators=(",", ":"))
    (make.HERE / "gqa.json").write_text(text + "\n", encoding="utf-8")
    print(len(cases), "prompts,", len(text.encode()), "bytes")


if __name__ == "__main__":
    main()
