"""What can be trained: models of both families. llama-a is models/facts-llama; what the DSA models reach is in README.md."""
from nets import Config

# name: (dimensions, peak learning rate, compile the elementwise functions)
VARIANTS = {
    "dsa-a": (Config("dsa", hidden=256, layers=6, inter=288, theta=10000.0), 1.5e-3, False),
    "llama-a": (Config("llama", hidden=256, layers=6, inter=320), 1.5e-3, False),
    "dsa-b": (Config("dsa", hidden=320, layers=4, inter=416, q_lora=160, theta=10000.0), 2.5e-3, True),
    "llama-b": (Config("llama", hidden=320, layers=4, inter=448), 2.5e-3, True),
    "dsa-c": (Config("dsa", hidden=256, layers=4, inter=352, kv_lora=256, nope=64, rope=64, index_heads=4, index_dim=128),
              1.5e-3, False),
    # Llama models with one key/value head, whose weights latent.py turns into those of the DSA models below them.
    "mqa-a": (Config("llama", hidden=256, layers=6, heads=4, inter=192, kv_heads=1, chat="dsa"), 1.5e-3, False),
    "dsa-m": (Config("dsa", hidden=256, layers=6, heads=4, inter=192, q_lora=256, kv_lora=256, nope=8, rope=64, v=64, index_heads=4), 3e-4, False),
    "mqa-b": (Config("llama", hidden=256, layers=4, heads=8, inter=256, kv_heads=1, chat="dsa"), 1.5e-3, False),
    "dsa-n": (Config("dsa", hidden=256, layers=4, heads=8, inter=256, q_lora=256, kv_lora=256, nope=8, rope=64, v=64, index_heads=4), 3e-4, False),
}
# For machines without a GPU: shows that the code learns, in minutes, on short documents.
SMALL = {
    "dsa-small": (Config("dsa", hidden=128, layers=3, heads=4, inter=192, q_lora=64, kv_lora=64, index_heads=4, topk=64),
                  3e-3, False),
    "llama-small": (Config("llama", hidden=128, layers=3, heads=4, inter=192, kv_heads=2, head_dim=32), 3e-3, False),
    "mqa-small": (Config("llama", hidden=128, layers=3, heads=4, inter=192, kv_heads=1, head_dim=32, chat="dsa"), 3e-3, False),
    "dsa-m-small": (Config("dsa", hidden=128, layers=3, heads=4, inter=192, q_lora=128, kv_lora=128, nope=8, rope=32, v=32, theta=500000.0,
                           index_heads=4, topk=64), 1e-3, False),
}
# DSA variant: the Llama variant that it begins as
LATENT_OF = {"dsa-m": "mqa-a", "dsa-n": "mqa-b", "dsa-m-small": "mqa-small"}
