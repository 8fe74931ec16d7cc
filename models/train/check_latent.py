#!/usr/bin/env python3
"""Shows that latent.py is exact: random Llama weights and their conversion give the same logits, in float64 and in bf16's error.

    check_latent.py [--seed 1]

Needs torch; takes seconds on a CPU.
"""
import argparse
import dataclasses

import torch

from latent import from_llama
from nets import Net
from variants import LATENT_OF, SMALL, VARIANTS


def converted(llama, dsa):
    missing, unexpected = dsa.load_state_dict(from_llama(llama.state_dict(), llama.c, dsa.c), strict=False)
    if unexpected or any(".indexer." not in k for k in missing):
        raise SystemExit(f"names: missing {missing}, unexpected {unexpected}")
    return dsa


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    all_variants = VARIANTS | SMALL
    for dsa, llama in LATENT_OF.items():
        nets = [Net(dataclasses.replace(all_variants[v][0], vocab=200)) for v in (llama, dsa)]
        for p in nets[0].parameters():
            if p.ndim == 1:
                torch.nn.init.uniform_(p, 0.5, 1.5)
        converted(*nets)
        ids = torch.randint(200, (2, 300))
        with torch.no_grad():
            a, b = (n.double().lm_head(n(ids, torch.float64)) for n in nets)
        difference = ((a - b).abs().max() / a.abs().max()).item()
        size = 2 * sum(p.numel() for n, p in nets[1].named_parameters())
        print(f"{dsa} from {llama}: largest difference of logits {difference:.1e} of the largest logit; {size} bytes in bf16 with 200 words")
        if difference > 1e-5:
            raise SystemExit("they differ")


if __name__ == "__main__":
    main()
