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
}
# For machines without a GPU: shows that the code learns, in minutes, on short documents.
SMALL = {
    "dsa-small": (Config("dsa", hidden=128, layers=3, heads=4, inter=192, q_lora=64, kv_lora=64, index_heads=4, topk=64),
                  3e-3, False),
    "llama-small": (Config("llama", hidden=128, layers=3, heads=4, inter=192, kv_heads=2, head_dim=32), 3e-3, False),
}
