"""What can be trained: models of both families. README.md says what they reach."""
from nets import Config

# name: (dimensions, peak learning rate)
VARIANTS = {
    "llama-a": (Config("llama", hidden=256, layers=6, inter=320), 1.5e-3),  # models/facts-llama
    # A Llama model with one key/value head, whose weights latent.py turns into those of dsa-m, which is models/facts-dsa.
    "mqa-a": (Config("llama", hidden=256, layers=6, heads=4, inter=192, kv_heads=1, chat="dsa"), 1.5e-3),
    "dsa-m": (Config("dsa", hidden=256, layers=6, heads=4, inter=192, q_lora=256, kv_lora=256, nope=8, rope=64, v=64, index_heads=4), 3e-4),
    # The DSA architecture from random weights, which does not learn to look up a name of two words.
    "dsa-a": (Config("dsa", hidden=256, layers=6, inter=288, theta=10000.0), 1.5e-3),
}
# For machines without a GPU: shows that the code learns, in minutes, on short documents.
SMALL = {
    "dsa-small": (Config("dsa", hidden=128, layers=3, heads=4, inter=192, q_lora=64, kv_lora=64, index_heads=4, topk=64),
                  3e-3),
    "llama-small": (Config("llama", hidden=128, layers=3, heads=4, inter=192, kv_heads=2, head_dim=32), 3e-3),
    "mqa-small": (Config("llama", hidden=128, layers=3, heads=4, inter=192, kv_heads=1, head_dim=32, chat="dsa"), 3e-3),
    "dsa-m-small": (Config("dsa", hidden=128, layers=3, heads=4, inter=192, q_lora=128, kv_lora=128, nope=8, rope=32, v=32, theta=500000.0,
                           index_heads=4, topk=64), 1e-3),
}
# DSA variant: the Llama variant that it begins as
LATENT_OF = {"dsa-m": "mqa-a", "dsa-m-small": "mqa-small"}
