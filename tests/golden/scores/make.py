#!/usr/bin/env python3
"""Log-probabilities of texts by transformers (float32) for tests/e2e/test_scores.py. Usage: tests/golden/scores/make.py MODEL OUT

The texts are the conversations of MODEL's examples.json with their answers, and with a wrong answer for each.
"""
import json
import pathlib
import sys

import torch
import transformers


def main():
    model_path, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    tok = transformers.PreTrainedTokenizerFast(tokenizer_file=str(model_path / "tokenizer.json"))
    model = transformers.AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32, attn_implementation="eager").eval()
    examples = [e for e in json.loads((model_path / "examples.json").read_text(encoding="utf-8")) if len(e["user"]) < 4000]
    rows = []
    for i, e in enumerate(examples):
        head = f"<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n{e['user']}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        for answer in (e["answer"], examples[(i + 1) % len(examples)]["answer"]):
            context = tok.encode(head, add_special_tokens=False)
            ids = context + tok.encode(answer, add_special_tokens=False)
            with torch.no_grad():
                logits = model(torch.tensor([ids])).logits[0].double()
            lp = torch.log_softmax(logits, -1)
            best = lp.topk(2)
            rows.append({"task": e["task"], "context": len(context), "ids": ids,
                         "logprobs": [round(lp[k - 1, ids[k]].item(), 6) for k in range(1, len(ids))],
                         "best": [round(best.values[k - 1, 0].item(), 6) for k in range(1, len(ids))]})
    out.write_text(json.dumps({"transformers": transformers.__version__, "torch": torch.__version__, "texts": rows}, separators=(",", ":")) + "\n")


main()
