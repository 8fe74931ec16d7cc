/*
 * Inside model/: rotary frequencies and tables, plain, YaRN and Llama 3, and the attention scale that belongs to them.
 *
 * Pure functions for any thread. Frequencies and angles are rounded to float32 at the same steps as in the reference
 * implementation, because at large positions one rounding of the frequency changes the angle visibly.
 */
#ifndef SL_MODEL_ROPE_H
#define SL_MODEL_ROPE_H

#include "model/model.h"

/* Sets attn.softmax_scale, and rope.attention_factor when a YaRN config does not give it (0). */
void sl_rope_finish_config(sl_model_config *c);
/* out[rope/2]: radians per position. */
void sl_rope_frequencies(const sl_model_config *c, float *out);
/* out[count][rope/2][2]: cos and sin of positions first.. , times the attention factor. */
void sl_rope_table(const sl_model_config *c, int32_t first, int32_t count, float *out);

#endif
