/*
 * The kernel of sl_peer_agree(): a few words from every rank to the host of every rank. One block; thread (r, w) writes
 * this rank's word w into the window of rank r and waits for word w of rank r in the own window. A word travels in one
 * store with the number of the call, so it is its own flag. What arrived goes to pinned memory, where the host looks for
 * the number of the call: it needs neither a copy nor the end of the kernel.
 */
#include "collectives/cuda/peer.h"

#include "kernels/cuda/common.cuh"

#define LOOKS 256 /* polls of a word between two checks of the clock and of the host's `stop` */

struct agree_words {
    uint32_t w[SL_PEER_AGREE_WORDS];
};

/* Word w of `sender` in the window of rank `at`. Two halves: who writes into the half of call n has seen all words of
 * call n - 1, so every rank has ended call n - 2. */
__device__ static uint64_t *word_of(const sl_peer_view &v, uint64_t area, int at, uint32_t call, int sender,
                                    int w)
{
    return (uint64_t *)(v.window[at] + area) +
           ((uint64_t)(call & 1) * v.ranks + sender) * SL_PEER_AGREE_WORDS + w;
}

__device__ static bool wait_for(const sl_peer_view &v, const uint64_t *at, uint32_t call, int sender,
                                uint32_t *word)
{
    uint64_t end = sl_clock_ns() + v.deadline_ns, got;

    for (uint32_t i = 1;; i++) {
        got = sl_load_system(at);
        if ((uint32_t)(got >> 32) == call) {
            *word = (uint32_t)got;
            return true;
        }
        if (i % LOOKS != 0)
            continue;
        if (*(volatile uint32_t *)&v.state->broken)
            return false;
        if (sl_clock_ns() > end || v.host->stop) {
            v.state->broken = 1;
            v.host->report = 1 + (uint32_t)sender;
            __threadfence_system();
            return false;
        }
    }
}

__global__ static void agree_kernel(sl_peer_view v, uint64_t area, agree_words mine, int words, uint32_t call,
                                    sl_cuda_meter *meter)
{
    int r = threadIdx.x / SL_PEER_AGREE_WORDS, w = threadIdx.x % SL_PEER_AGREE_WORDS;
    bool there = *(volatile uint32_t *)&v.state->broken == 0;
    uint64_t begun = sl_clock_ns();
    uint32_t word = 0;

    if (there && r < v.ranks && w < words) {
        if (r == v.rank) {
            word = mine.w[w];
        } else {
            uint64_t out = (uint64_t)call << 32 | mine.w[w];
            sl_store_system(word_of(v, area, r, call, v.rank, w), out);
            there = wait_for(v, word_of(v, area, v.rank, call, r, w), call, r, &word);
        }
        if (there)
            v.host->words[r][w] = word;
        __threadfence_system();
    }
    if (!__syncthreads_and(there) || threadIdx.x != 0)
        return;
    v.host->agreed = call;
    meter->calls++;
    meter->ns += sl_clock_ns() - begun;
    meter->bytes += 4ull * words * (v.ranks - 1);
}

extern "C" sl_status sl_peer_agree(sl_cuda *cu, const sl_peer_view *v, const void *src, size_t bytes,
                                   uint32_t call, sl_cuda_meter *meter, sl_err *err)
{
    agree_words mine = {};

    memcpy(mine.w, src, bytes);
    return SL_LAUNCH(cu, agree_kernel, (sl_launch{1, (int)(v->ranks * SL_PEER_AGREE_WORDS)}), err, *v,
                     sl_peer_agree_at(v->ranks, v->slot_bytes), mine, (int)(bytes / 4), call, meter);
}
