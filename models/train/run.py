#!/usr/bin/env python3
"""Trains several variants concurrently, one GPU each, within a time.

    run.py --minutes 9 --out DIR [--variants llama-a,mqa-a] [--seed 1]
           [--start-from DIR]

With fewer GPUs than variants, only the first variants of the list are trained. DIR gets VARIANT.tar (the checkpoint, its
training.json included) and VARIANT.log for each; the checkpoints lie unpacked in --work.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from variants import LATENT_OF  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent


def gpus():
    """Names of the GPUs for CUDA_VISIBLE_DEVICES."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [g for g in given.split(",") if g]
    count = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
    out = subprocess.run(count, capture_output=True, text=True, check=True).stdout
    return [str(i) for i in range(int(out.split()[-1]))]


def start(variant, gpu, args, until, work):
    env = dict(os.environ, PYTHONUNBUFFERED="1", OMP_NUM_THREADS="8", TORCHINDUCTOR_CACHE_DIR=f"{work}/inductor-{variant}",
               TRITON_CACHE_DIR=f"{work}/triton-{variant}")
    if gpu is not None:
        env["CUDA_VISIBLE_DEVICES"] = gpu
    command = [sys.executable, str(HERE / "train.py"), "--variant", variant, "--until", str(until), "--seed", str(args.seed),
               "--out", str(args.out), "--work", work]
    for earlier in (variant, LATENT_OF.get(variant)) if args.start_from else ():
        if earlier and (args.start_from / earlier).is_dir():
            command += ["--start-from", str(args.start_from / earlier)]
            break
    with open(args.out / f"{variant}.log", "w", encoding="utf-8") as log:
        return subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)


def tail(path, n):
    return path.read_text(encoding="utf-8", errors="replace").splitlines()[-n:]


def main():
    begun = time.time()
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--minutes", type=float, default=9, help="from the start of this program to the last checkpoint")
    ap.add_argument("--out", type=pathlib.Path, required=True)
    ap.add_argument("--work", help="default: a new temporary folder")
    ap.add_argument("--variants", default="llama-a,mqa-a")
    ap.add_argument("--start-from", type=pathlib.Path, help="folder with checkpoints of earlier runs, which are trained further")
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    work = args.work or tempfile.mkdtemp(prefix="train-")
    devices = gpus() or [None]
    until = begun + 60 * args.minutes
    runs = {v: start(v, g, args, until, work) for v, g in zip(args.variants.split(","), devices)}
    print(f"{len(runs)} variants on {len(devices)} devices; checkpoints in {work}", flush=True)
    shown = time.time()
    while any(p.poll() is None for p in runs.values()):
        time.sleep(1)
        if time.time() - shown > 30:
            shown = time.time()
            for v in runs:
                print(v, *tail(args.out / f"{v}.log", 1), flush=True)
    for v, p in runs.items():
        print(f"== {v}: exit status {p.returncode}", *tail(args.out / f"{v}.log", 20), sep="\n", flush=True)
    return 1 if any(p.returncode for p in runs.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
