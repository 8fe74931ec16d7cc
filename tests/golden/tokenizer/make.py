#!/usr/bin/env python3
"""Makes the tokenizer goldens: strings, and the ids that Hugging Face tokenizers gives for them, for several tokenizer.json.

    tests/golden/tokenizer/make.py            writes strings.bin, <variant>.json and <variant>.bin into this folder
    tests/golden/tokenizer/make.py show V I   prints string I and its ids in variant V

Deterministic: a fixed seed, and texts from this file only. The variant `v32` is models/tiny-v32/tokenizer.json, so run this again after
scripts/train-tokenizer. Needs the Python package `tokenizers` 0.23.

strings.bin   u32 count, then per string: varint length, bytes
<variant>.bin per string one u32 hash of its ids and of their decoded text (string i is encoded with add_special_tokens = i
              odd and decoded with skip_special_tokens = i % 3 == 0); then SEQUENCES u32 hashes of the decoded text, with
              and without special tokens, of sequences of random ids. hash32() below is the definition.
"""
import json
import pathlib
import random
import struct
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
COUNT = 10400
SEQUENCES = 1500
GLM_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN_SPLIT = GLM_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
WORDS = """the of and to in is you that it he was for on are as with his they at be this have from or one had by word
but not what all were we when your can said there use an each which she do how their if will up other about out many
then them these so some her would make like him into time has look two more write go see number no way could people
don't I'll we've they're it's I'm he'd CAN'T attention cache kernel router token prefill decode page tensor layer""".split()
SCRIPTS = [
    "Быстрая коричневая лиса прыгает через ленивую собаку", "Η γρήγορη αλεπού πηδά", "השועל החום המהיר קופץ",
    "الثعلب البني السريع يقفز", "तेज भूरी लोमड़ी कूदती है", "เร็วสุนัขจิ้งจอกสีน้ำตาล", "敏捷的棕色狐狸跳过了懒狗。你好，世界！",
    "素早い茶色の狐がのろまな犬を飛び越える", "カタカナとひらがなと漢字ー々〆", "빠른 갈색 여우가 게으른 개를 뛰어넘는다",
    "Zażółć gęślą jaźń", "Þórður æfði á íslensku", "Việt Nam đẹp lắm", "ქართული ენა", "Հայերեն լեզու", "ភាសាខ្មែរ",
    "தமிழ் மொழி", "አማርኛ ቋንቋ", "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ", "𐍈𐌰𐌿𐍂𐌽 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝒮𝒸𝓇𝒾𝓅𝓉", "ﬁne ﬂow Ⅷ ½ ²³ ① ㎏ ｆｕｌｌ",
]
EMOJI = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🇩🇪🇯🇵", "❤️", "🏳️‍🌈", "1️⃣", "🧑🏿‍🚀", "☃", "♟️"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n", "\t\t ", "\u00a0", "\u2003", "\u3000", "\u2028", "\u0085", "\u200b", "\v", "\f",
          " " * 17, "\n" * 6, " \t \n \t ", "\r", "\u180e", "\u1680", "\ufeff"]
ODD = ["\u0000", "\u0001", "\u001b", "\u007f", "\u00ad", "\u0300", "e\u0301", "\u00e9", "A\u030a\u0323", "\u1e9b\u0323", "\uac00", "\u1100\u1161\u11a8", "\u202e",
       "\u2066", "\ufffd", "\ufffe", "\uffff", "\U0010ffff", "\U0001fffe", "\ue000", "\ud7ff", "\u0378", "\U000e0001", "\u200d", "\u200c", "Ġ", "Ċ", "▁", "\u0344",
       "\u2126", "\u212b", "\uf900", "ſ", "İ", "ẞ", "ﷺ", "᾽"]
CODE = ["int main(void) { return 0; }\n", "for (size_t i = 0; i < n; i++)\n\t\tsum += a[i];\n", "def f(x):\n    return x**2 + 1\n",
        "SELECT * FROM t WHERE a >= 10;", "{\"key\": [1, 2.5e-3, null, \"v\\n\"]}", "https://example.org/a?b=c&d=%20#e", "a->b->c[0](*p)++;", "#include <stdio.h>\n",
        "x = \"it's\" + 'say \"hi\"'", "<div class=\"a\">&amp;</div>", "`code` **bold** _it_ ~~no~~", "--flag=value -x | grep -v '^$' && exit 1", "\\alpha \\frac{1}{2}"]
PUNCT = ["...", "—", "!?!", "«»", "“q”", "。", "，", "、", "؟", "¿", "§", "€5", "$1,000.00", "100%", "#", "@x", "&", "(a)", "[b]", "{c}", "<d>", "|", "~", "^", "`", "/*", "*/", "\\",
         "+1-2=3", "°C", "™", "→", "∑", "½"]
NUMBERS = ["0", "7", "42", "123", "1234", "12345", "1234567", "3.14159", "1e10", "0x1F", "٣٤٥", "१२३", "Ⅻ", "²", "1 000 000", "2026-11-21"]


def added_of(name):
    return [t["content"] for t in json.loads(path_of(name).read_text(encoding="utf-8"))["added_tokens"]]


def path_of(name):
    return ROOT / "models/tiny-v32/tokenizer.json" if name == "v32" else HERE / f"{name}.json"


def corpus():
    rnd = random.Random(7)
    for _ in range(300):
        yield " ".join(rnd.choice(WORDS) for _ in range(12))
    for _ in range(80):
        yield "".join(rnd.choice(["A", "AB", "ABC", "12", "345", "--", ",", ";", "#", "#@", "x", "xx", ". ", "!?", "  ", "\n"]) for _ in range(30))
    yield from ["a,, b,," * 5, "c;; d,;" * 5, "##@ #@@" * 5] * 20
    yield from SCRIPTS * 3
    yield from CODE * 3
    yield from NUMBERS


def train(tok, size, alphabet=True, specials=()):
    """Trains without any split, so that merges cross every boundary and a split in the wrong place changes the ids."""
    splits, tok.pre_tokenizer = tok.pre_tokenizer, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(specials), show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()) if alphabet else [],
    )
    tok.train_from_iterator([line[i:i + 40] for line in corpus() for i in range(0, len(line), 40)], trainer)
    tok.pre_tokenizer = splits
    return tok


def save(name, tok, edit=lambda d: None):
    d = json.loads(tok.to_str())
    edit(d)
    (HERE / f"{name}.json").write_text(json.dumps(d, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def make_glm():
    """GLM/Qwen-like: NFC, one Split, ignore_merges, merges as strings, a template with two tokens in front."""
    tok = Tokenizer(models.BPE(ignore_merges=True))
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(GLM_SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tok.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()])
    train(tok, 700)
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False)
                            for t in ["[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|endoftext|>"]])
    tok.add_tokens([AddedToken(t, normalized=False) for t in ["<tool_call>", "</tool_call>", "<tool_call"]])
    tok.post_processor = processors.TemplateProcessing(
        single="[gMASK] <sop> $A", special_tokens=[(t, tok.token_to_id(t)) for t in ("[gMASK]", "<sop>")])

    def edit(d):
        d["model"]["merges"] = [" ".join(m) for m in d["model"]["merges"]]
        # a whole word that no merge reaches: only ignore_merges finds it
        d["model"]["vocab"]["Ġneverm"] = len(d["model"]["vocab"])
        for t in d["added_tokens"]:
            t["id"] += 1
        for s in d["post_processor"]["special_tokens"].values():
            s["ids"] = [i + 1 for i in s["ids"]]
    save("glm", tok, edit)


def pairs_of(split):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False)])


def make_llama3():
    """Llama 3: digits by three, no normalizer, ignore_merges, all added tokens special, ids of reserved tokens between them."""
    tok = Tokenizer(models.BPE(ignore_merges=True))
    tok.pre_tokenizer = pairs_of(GLM_SPLIT)
    tok.decoder = decoders.ByteLevel(add_prefix_space=True, trim_offsets=True, use_regex=True)
    train(tok, 800)
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|finetune_right_pad_id|>", "<|start_header_id|>",
             "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>", "<|reserved_special_token_1|>"]
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in names])
    tok.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[(names[0], tok.token_to_id(names[0]))])])

    def edit(d):
        d["model"]["vocab"]["Ġneverm"] = len(d["model"]["vocab"])  # as in make_glm()
        for t in d["added_tokens"]:
            t["id"] += 1
        for s in d["post_processor"]["processors"][1]["special_tokens"].values():
            s["ids"] = [i + 1 for i in s["ids"]]
    save("llama3", tok, edit)


def make_qwen():
    """Qwen 2.5 and 3: NFC, single digits, merges as strings, empty affixes, added tokens of which some are not special."""
    tok = Tokenizer(models.BPE(continuing_subword_prefix="", end_of_word_suffix=""))
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pairs_of(QWEN_SPLIT)
    tok.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tok.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    train(tok, 800)
    for text, special in [("<|endoftext|>", True), ("<|im_start|>", True), ("<|im_end|>", True), ("<|vision_pad|>", True), ("<tool_call>", False),
                          ("</tool_call>", False), ("<|fim_prefix|>", False), ("<tool_response>", False), ("</tool_response>", False),
                          ("<think>", False), ("</think>", False)]:
        tok.add_tokens([AddedToken(text, special=special, normalized=False)])
    save("qwen", tok, lambda d: d["model"].update(merges=[" ".join(m) for m in d["model"]["merges"]]))


def make_flags():
    """GPT-2-like with prefix space, every added-token flag, tokens that overlap, NFKC, a template on both sides."""
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.Sequence([normalizers.NFKC()])
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)
    tok.decoder = decoders.ByteLevel()
    train(tok, 500, specials=[AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    for lstrip in (False, True):
        for rstrip in (False, True):
            for single in (False, True):
                for normalized in (False, True):
                    name = "".join(c for c, on in zip("lrsn", (lstrip, rstrip, single, normalized)) if on) or "o"
                    tok.add_tokens([AddedToken(f"<{name}>", lstrip=lstrip, rstrip=rstrip, single_word=single,
                                               normalized=normalized, special=lstrip and single)])
    tok.add_tokens([AddedToken("word", single_word=True, normalized=False), AddedToken("wordy", normalized=False),
                    AddedToken("ｆｕｌｌ", normalized=True), AddedToken("é", normalized=True), AddedToken("<s><s>", special=True, normalized=False),
                    AddedToken("  ", normalized=False), AddedToken("ab", normalized=True), AddedToken("abc", normalized=True),
                    AddedToken("bcd", normalized=True), AddedToken("日本", single_word=True, normalized=False),
                    AddedToken("Ⅷ!", special=True, normalized=True)])
    tok.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])])
    save("flags", tok)


def make_splits():
    """Every split behaviour, String patterns, invert, Digits, bytes missing from the vocabulary, a fused unknown token."""
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    s = pre_tokenizers.Split
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        s("\u00a0", "removed"), s(Regex(r"[,;]"), "merged_with_previous"), s(Regex(r"[#@]+"), "merged_with_next"),
        s(Regex(r"[\p{Lu}]"), "contiguous"), s(Regex(r"[^\t]+"), "removed", invert=True), s("--", "isolated"), s(Regex(r"x+|(?=w)"), "isolated"),
        s(Regex(r"[.!?]"), "contiguous", invert=True),
        pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    train(tok, 600, alphabet=False, specials=["<unk>"])
    rare = {"Ã", "ã", "è", "Ð"}  # bytes C3, E3, E8, D0 get no token

    def edit(d):
        keep = [t for t in d["model"]["vocab"] if not rare.intersection(t)]
        d["model"]["vocab"] = {t: i for i, t in enumerate(keep)}
        d["model"]["merges"] = [m for m in d["model"]["merges"] if not rare.intersection(m[0] + m[1])]
    save("splits", tok, edit)


def make_unk():
    """The smallest kind: no normalizer, GPT-2 split, an unknown token that is not fused, half of the bytes missing."""
    tok = Tokenizer(models.BPE(unk_token="?"))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator([" ".join(WORDS) + "?"], trainers.BpeTrainer(vocab_size=150, show_progress=False))
    save("unk", tok)


def safe_char(rnd):
    """A character assigned in Unicode 14, so that the answer does not depend on the regex engine's tables."""
    while True:
        c = rnd.choice([rnd.randrange(0x20, 0x250), rnd.randrange(0x250, 0x3000), rnd.randrange(0x3000, 0xd800),
                        rnd.randrange(0xe000, 0x10000), rnd.randrange(0x10000, 0x1fb00)])
        # the modifier letters of U+10780 got their compatibility mapping later than the tables of some normalizers
        if unicodedata.category(chr(c)) not in ("Cn", "Cs") and not 0x10780 <= c < 0x107C0:
            return chr(c)


def make_strings():
    rnd = random.Random(20261121)
    added = sorted({t for v in VARIANTS for t in added_of(v) if "reserved" not in t})
    pools = [(WORDS, 6), (SPACES, 5), (PUNCT, 4), (NUMBERS, 3), (CODE, 1), (EMOJI, 2), (ODD, 2), (added, 5)]
    kinds = [p for p, weight in pools for _ in range(weight)]
    out = ["", " ", "\n", "a", "é", "😀", " neverm", "neverm", "a neverm b", "aaaa" * 20, "ab" * 100, " " * 300, "\n" * 120, "0" * 200, "あ" * 50, "xyzxxxy" * 12,
           "word-word wordword word", "word‿ ‿word", "word＿", "word\u0301", "wordⒶ", "word² ½word", "word\u200d", "word٣", "Ⅷ! VIII! a", "AABBCCAB12a345", "a,, b,,,;; c,;", "x##@y #@@,,", "xword wordx word", "日本 日本語", "it'ſ 'ſ WE'LL 'Re'D’s", "1234567890 12 ٣٤٥٦ ½²³ ⅧⅫ 𝟘𝟙𝟚𝟛", "\r\n\r \n\t\n  x  \u00a0\n\u2028\u3000",
           "A\u030a\u0323 e\u0301\u0327 \u1100\u1161\u11a8 \u2126\u212b \u0958 \ufb2c \U0001d15e", "क्\u200dष 👨‍👩‍👧‍👦🏳️‍🌈 \u200b\ufeff\u00ad", "(0x2F)[\\n]--->>> ...!?\r\n\r\n", "é<l> \t<r>  <s> </s><s><s><s>"] + SCRIPTS + CODE + EMOJI + ODD + SPACES + NUMBERS + PUNCT + added
    while len(out) < COUNT:
        shape = rnd.random()
        if shape < 0.12:
            out.append("".join(safe_char(rnd) for _ in range(rnd.randrange(1, 8))))
            continue
        if shape < 0.2:
            s = rnd.choice(SCRIPTS)
            a = rnd.randrange(len(s))
            out.append(s[a:a + rnd.randrange(1, 14)])
            continue
        parts = []
        for _ in range(rnd.randrange(1, 6)):
            parts.append(rnd.choice(rnd.choice(kinds)))
            if rnd.random() < 0.4:
                parts.append(" ")
        s = "".join(parts)
        out.append(s.upper() if rnd.random() < 0.05 else s)
    return out


def varint(n):
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def hash32(ids, *texts):
    """FNV-1a over the ids (4 bytes, little-endian) and the texts (each followed by a NUL), folded to 32 bits."""
    h = 0xCBF29CE484222325
    for b in struct.pack(f"<{len(ids)}I", *ids) + b"".join(t.encode("utf-8") + b"\0" for t in texts):
        h = (h ^ b) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return struct.pack("<I", (h ^ h >> 32) & 0xFFFFFFFF)


def sequences(vocab):
    """Random ids, some of them outside the vocabulary; the test makes the same ones."""
    x = 1
    for n in range(SEQUENCES):
        ids = []
        for _ in range(1 + n % 24):
            x = (x * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
            ids.append((x >> 33) % (vocab + 3))
        yield ids


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "show":
        i = int(sys.argv[3])
        tok, s = Tokenizer.from_file(str(path_of(sys.argv[2]))), make_strings()[i]
        e = tok.encode(s, add_special_tokens=bool(i % 2))
        print(repr(s), s.encode().hex(" "), e.ids, e.tokens, repr(tok.decode(e.ids, skip_special_tokens=i % 3 == 0)), sep="\n")
        return
    for make in (make_glm, make_flags, make_splits, make_unk, make_llama3, make_qwen):
        make()
    strings = make_strings()
    (HERE / "strings.bin").write_bytes(
        struct.pack("<I", len(strings)) + b"".join(varint(len(s.encode())) + s.encode() for s in strings))
    for name in VARIANTS:
        tok = Tokenizer.from_file(str(path_of(name)))
        out = []
        for i, s in enumerate(strings):
            ids = tok.encode(s, add_special_tokens=bool(i % 2)).ids
            out.append(hash32(ids, tok.decode(ids, skip_special_tokens=i % 3 == 0)))
        for ids in sequences(tok.get_vocab_size()):
            out.append(hash32([], *(tok.decode(ids, skip_special_tokens=skip) for skip in (False, True))))
        data = b"".join(out)
        (HERE / f"{name}.bin").write_bytes(data)
        print(name, tok.get_vocab_size(), "ids", len(data), "bytes")


VARIANTS = ["v32", "glm", "flags", "splits", "unk", "llama3", "qwen"]

if __name__ == "__main__":
    main()
