"""The language of the generated documents: its words, its sentence templates and its tokenizer.

Every word, with its leading space, and every number of two digits is one token. The tokenizer is byte-level BPE without
merges (`ignore_merges`): a piece of text that is in the vocabulary is one token, any other piece is spelled in bytes. So
every text can be encoded, and a reader can check a prompt by eye.

Documents are made as tensors of ids (documents.py). The templates are cut here by the same expression that the
tokenizer's file holds, so the ids are those that encoding the text gives; tests.py checks that.
"""
import json
import pathlib
import re

HERE = pathlib.Path(__file__).resolve().parent
WORDS = json.loads((HERE / "words.json").read_text(encoding="utf-8"))

# The same expression twice: of the tokenizer's file, and of Python's re, for the texts that occur here.
SPLIT = r" ?\p{L}+| ?\p{N}{1,2}|\s*[\r\n]+| ?[^\s\p{L}\p{N}]+|\s+"
_CUT = re.compile(r" ?\{\w+\}| ?[A-Za-z]+| ?[0-9]{1,2}|\s*[\r\n]+| ?[^\sA-Za-z0-9{]+|\s+")

# kind: (statement, question, answer). Slots: names of words.json, or n, m (a code's digits), d, D (a variable's digit).
FACTS = {
    "code": (" The code of the {quality} {thing} is {n}{m}.", " What is the code of the {quality} {thing}?",
             " The code of the {quality} {thing} is {n}{m}."),
    "lives": (" {first} {last} lives in {city}.", " Where does {first} {last} live?", " {first} {last} lives in {city}."),
    "likes": (" {first} {last} likes the colour {colour}.", " Which colour does {first} {last} like?",
              " {first} {last} likes the colour {colour}."),
    "works": (" {first} {last} works as a {job}.", " What is the job of {first} {last}?",
              " {first} {last} works as a {job}."),
    "owns": (" {first} {last} owns a {animal}.", " Which animal does {first} {last} own?",
             " {first} {last} owns a {animal}."),
}
PERSON = ("lives", "likes", "works", "owns")
ROOT = " Let {variable}{d} = {n}{m}."
LINK = " Let {variable}{d} = {parent}{D}."
CHAIN_QUESTION = " What is the value of {variable}{d}?"
FILLER = (
    " In the {time}, the {mood} {job} {verb} near the {place}.",
    " The {mood} {animal} {verb} under the {thing} all day.",
    " Nobody knows why the {mood} {animal} {verb} in the {place}.",
)
SEVERAL = {
    2: " What are the codes of the {quality0} {thing0} and the {quality1} {thing1}?",
    3: " What are the codes of the {quality0} {thing0}, the {quality1} {thing1} and the {quality2} {thing2}?",
}
TEXT, QUESTION, LATER_QUESTION, ANSWER = "Text:", "Question:", " Question:", "Answer:"
REMINDER = " Answer the question."

# The chat formats of the two families: added tokens, of which the first three are bos, eos and pad; the rest of a turn.
CHATS = {
    "dsa": {
        "added": ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", "<think>", "</think>", "<｜User｜>",
                  "<｜Assistant｜>", "｜DSML｜"],
        "special": 3,
        "user": ["<｜User｜>"],
        "assistant": ["<｜Assistant｜>", "</think>"],
        "end": "<｜end▁of▁sentence｜>",
    },
    "llama": {
        "added": ["<|begin_of_text|>", "<|end_of_text|>", "<|pad|>", "<|start_header_id|>", "<|end_header_id|>",
                  "<|eot_id|>"],
        "special": 6,
        "user": ["<|start_header_id|>", "user", "<|end_header_id|>", "\n\n"],
        "assistant": ["<|eot_id|>", "<|start_header_id|>", "assistant", "<|end_header_id|>", "\n\n"],
        "end": "<|eot_id|>",
    },
}


def _alphabet():
    """The byte-level alphabet of GPT-2: the character that stands for each byte."""
    plain = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    rest = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(rest)}


_ALPHABET = _alphabet()


def _spelled(piece):
    return "".join(_ALPHABET[b] for b in piece.encode())


def cut(text):
    return [p for p in _CUT.findall(text)]


class Language:
    """Ids of one family's vocabulary. Immutable after construction."""

    def __init__(self, family):
        self.chat = CHATS[family]
        self.id = {}
        for token in self.chat["added"]:
            self.id[token] = len(self.id)
        self.n_added = len(self.id)
        for b in range(256):
            self.id.setdefault(_spelled_byte(b), len(self.id))
        for piece in self._pieces():
            self.id.setdefault(_spelled(piece), len(self.id))
        self.n_tokens = len(self.id)
        self.vocab_size = (self.n_tokens + 31) // 32 * 32
        self.bos, self.eos, self.pad = 0, 1, 2
        self.end = self.id[self.chat["end"]]
        self.words = {name: [self.of(" " + w) for w in words] for name, words in WORDS.items()}
        self.words["n"] = [self.of(f" {i:02d}") for i in range(100)]
        self.words["m"] = [self.of(f"{i:02d}") for i in range(100)]
        self.words["d"] = self.words["D"] = [self.of(str(i)) for i in range(10)]
        self.words["parent"] = self.words["variable"]

    def _pieces(self):
        texts = [t for fact in FACTS.values() for t in fact]
        texts += [ROOT, LINK, CHAIN_QUESTION, *FILLER, *SEVERAL.values(), TEXT, QUESTION, LATER_QUESTION, ANSWER, REMINDER]
        texts += [" What", "What", "Where", "Which", "system", "user", "assistant", "\n", "\n\n", " What are the codes"]
        for text in texts:
            yield from (p for p in cut(text) if "{" not in p)
        for words in WORDS.values():
            yield from (" " + w for w in words)
        for i in range(100):
            yield f" {i:02d}"
            yield f"{i:02d}"

    def of(self, piece):
        """The id of a piece of text or of an added token."""
        return self.id[piece] if piece in self.chat["added"] else self.id[_spelled(piece)]

    def parse(self, *parts):
        """A template: a list whose items are ids and names of slots. Parts are texts or lists of pieces."""
        out = []
        for part in parts:
            for piece in part if isinstance(part, list) else cut(part):
                slot = re.fullmatch(r" ?\{(\w+)\}", piece)
                out.append(slot.group(1) if slot else self.of(piece))
        return out

    def save(self, folder):
        """Writes tokenizer.json and tokenizer_config.json."""
        added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                  "special": i < self.chat["special"]} for i, t in enumerate(self.chat["added"])]
        pre = [{"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False},
               {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]
        model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                 "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
                 "vocab": self.id, "merges": []}
        level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
        tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
                     "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre},
                     "post_processor": {**level, "trim_offsets": False}, "decoder": level, "model": model}
        config = {"add_bos_token": False, "add_eos_token": False, "bos_token": self.chat["added"][0],
                  "clean_up_tokenization_spaces": False, "eos_token": self.chat["end"], "model_max_length": 8192,
                  "pad_token": self.chat["added"][2], "tokenizer_class": "PreTrainedTokenizerFast", "unk_token": None}
        folder = pathlib.Path(folder)
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False) + "\n", encoding="utf-8")
        (folder / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False, indent=2) + "\n",
                                                      encoding="utf-8")

    def decode(self, ids):
        """Text of ids, for logs and tests."""
        text, back = [], {i: t for t, i in self.id.items()}
        bytes_of = {c: b for b, c in _ALPHABET.items()}
        for i in ids:
            token = back.get(int(i), "")
            text.append(token.encode() if i < self.n_added else bytes(bytes_of[c] for c in token))
        return b"".join(text).decode(errors="replace")


def _spelled_byte(b):
    return _ALPHABET[b]
