/*
 * The smallest valid tokenizer.json: every byte is a token, there are no merges and two special tokens. For tests and
 * benchmarks that need text but no model.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/strbuf.h"
#include "model/tokenizer.h"
#include "bench/mock/mock.h"

/* The printable character that stands for a byte in the vocabulary of byte-level BPE. */
static unsigned byte_char(unsigned b, unsigned *next)
{
    if ((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174)
        return b;
    return 256 + (*next)++;
}

sl_status sl_mock_tokenizer(struct sl_tokenizer **out, sl_err *err)
{
    sl_strbuf sb = {0};
    unsigned next = 0;
    sl_sb_str(&sb, "{\"version\":\"1.0\",\"added_tokens\":[");
    for (int i = 0; i < 2; i++)
        sl_sb_printf(
            &sb,
            "%s{\"id\":%d,\"content\":\"<|%s|>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
            "\"normalized\":false,\"special\":true}",
            i ? "," : "", 256 + i, i ? "end" : "begin");
    sl_sb_str(&sb,
              "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
              "\"trim_offsets\":true,\"use_regex\":false},\"post_processor\":null,\"decoder\":{\"type\":"
              "\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},\"model\":{"
              "\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,"
              "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,\"vocab\":{");
    for (unsigned b = 0; b < 256; b++)
        sl_sb_printf(&sb, "%s\"\\u%04x\":%u", b ? "," : "", byte_char(b, &next), b);
    sl_sb_str(&sb, "},\"merges\":[]}}");
    size_t len = sb.len;
    char *text = sl_sb_take(&sb);
    if (!text)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    sl_status st = sl_tokenizer_parse(text, len, "mock tokenizer", out, err);
    free(text);
    return st;
}
