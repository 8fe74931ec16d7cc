"""Writes a checkpoint as transformers and Sluice read it: config, bf16 weights, tokenizer, and how it was trained."""
import json
import os
import pathlib
import shutil
import tarfile

import torch
from safetensors.torch import save_file


def _write(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def save(net, lang, folder, training):
    """Replaces `folder` as a whole, and FOLDER.tar with it, so that a run that is cut leaves the last whole one."""
    folder = pathlib.Path(folder)
    new = folder.with_name(folder.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    config = net.hf_config(lang)
    weights = {k: v.detach().to("cpu", torch.bfloat16).contiguous() for k, v in net.state_dict().items()}
    save_file(weights, str(new / "model.safetensors"), metadata={"format": "pt"})
    (new / "model.safetensors").chmod(0o644)  # the library makes it private
    _write(new / "config.json", config)
    _write(new / "generation_config.json", {k: config[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id")})
    _write(new / "training.json", training)
    lang.save(new)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(new, folder)


def pack(folder, tar):
    """FOLDER as an uncompressed archive, replaced as a whole."""
    part = str(tar) + ".part"
    with tarfile.open(part, "w") as f:
        f.add(folder, pathlib.Path(folder).name)
    os.replace(part, tar)
