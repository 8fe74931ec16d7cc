/*
 * Cold times of FlashInfer's sampling, to be read next to `cold --only sample`: the same rows, vocabulary, kinds of logits and method
 * (cold.c), in one call. FlashInfer draws from probabilities, so a choice is its softmax and its draw; both together, and the
 * draw alone, are measured. Its draws are not the same tokens for every backend, and have no log-probabilities and no penalties.
 *
 *   sample_peers [REPS]
 *
 * It is built with FlashInfer's headers, which are not in this repository: `pip download --no-deps flashinfer-python`, unzip,
 * `cmake -DSL_CUDA=ON -DSL_FLASHINFER=.../flashinfer/data/include`, `ninja sample_peers`; tests/gpu/pack takes it where it was built.
 * CSV: peer,shape,us.
 */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <algorithm>
#include <vector>

#include <cuda_runtime.h>
#include <flashinfer/sampling.cuh>

namespace
{

enum { VOCAB = 129280, SHORT = 2, LONG = 10, COPIES = 12, WARM = 2, MOST_REPS = 99 };
constexpr size_t FLUSH = (size_t)256 << 20, WORK = (size_t)16 << 20;

void must(cudaError_t e, const char *what)
{
    if (e == cudaSuccess)
        return;
    fprintf(stderr, "sample_peers: %s: %s\n", what, cudaGetErrorString(e));
    exit(1);
}

enum mode { SOFTMAX, DRAW, TOP_P, TOP_P_ALONE, TOP_K, BOTH, TEMPERATURE };
const char *const names[] = {"softmax",
                             "temperature (softmax and draw)",
                             "top_p 0.95 (softmax and draw)",
                             "top_p 0.95 (draw alone)",
                             "top_k 50 (softmax and draw)",
                             "top_k 1000 and top_p 0.95 (softmax and draw)",
                             "temperature (from logits)"};
const char *const kinds[] = {"flat", "peaked", "equal"};

struct bench {
    cudaStream_t stream;
    std::vector<float *> logits, probs; /* one of each call, so that no input is in a cache */
    int *out;
    bool *valid;
    void *work;
    uint8_t *flush;
    int rows, kind;
    uint64_t seed;
};

/* The distributions of cold_sample.c. */
void fill(std::vector<float> *v, int kind)
{
    uint64_t x = 88172645463325252ull;
    auto u = [&x] {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        return (float)(x >> 44) * 0x1p-20f;
    };
    for (size_t i = 0; i < v->size(); i++) {
        float a = u(), b = u();
        (*v)[i] = kind == 2 ? 0.25f : kind == 0 ? 6 * a - 3 : i % 3000 == 7 ? 12 * a : 4 * (a + b) - 14;
    }
}

void prepare(bench *b, int rows, int kind)
{
    std::vector<float> host((size_t)rows * VOCAB);
    b->rows = rows, b->kind = kind;
    fill(&host, kind);
    for (int i = 0; i < COPIES; i++) {
        must(cudaMemcpy(b->logits[i], host.data(), host.size() * 4, cudaMemcpyHostToDevice), "copy");
        must(flashinfer::sampling::OnlineSoftmax<float>(b->logits[i], b->probs[i], rows, VOCAB, nullptr, 0.7f,
                                                        b->work, WORK, false, b->stream),
             "softmax");
    }
    must(cudaStreamSynchronize(b->stream), "softmax");
}

cudaError_t call(bench *b, int m, int i)
{
    using namespace flashinfer::sampling;
    float *p = b->probs[i];
    const uint32_t n = b->rows;
    const uint64_t seed = ++b->seed;
    if (m != TOP_P_ALONE && m != TEMPERATURE) {
        cudaError_t e =
            OnlineSoftmax<float>(b->logits[i], p, n, VOCAB, nullptr, 0.7f, b->work, WORK, false, b->stream);
        if (e != cudaSuccess || m == SOFTMAX)
            return e;
    }
    switch (m) {
    case TEMPERATURE:
        return SamplingFromLogits<float, int>(b->logits[i], b->out, nullptr, n, VOCAB, true, nullptr, seed,
                                              nullptr, 0, b->stream);
    case DRAW:
        return SamplingFromProb<float, int>(p, b->out, b->valid, nullptr, n, VOCAB, true, nullptr, seed,
                                            nullptr, 0, b->stream);
    case TOP_K:
        return TopKSamplingFromProb<float, int>(p, b->out, b->valid, nullptr, nullptr, n, 50, VOCAB, true,
                                                nullptr, seed, nullptr, 0, b->stream);
    case BOTH:
        return TopKTopPSamplingFromProb<float, int>(p, nullptr, nullptr, b->out, b->valid, nullptr, n, 1000,
                                                    0.95f, VOCAB, true, nullptr, seed, nullptr, 0, b->stream);
    default:
        return TopPSamplingFromProb<float, int>(p, b->out, b->valid, nullptr, nullptr, n, 0.95f, VOCAB, true,
                                                nullptr, seed, nullptr, 0, b->stream);
    }
}

cudaGraphExec_t capture(bench *b, int m, int calls)
{
    cudaGraph_t g;
    cudaGraphExec_t x;
    must(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < calls; i++)
        must(call(b, m, i % COPIES), names[m]);
    must(cudaStreamEndCapture(b->stream, &g), "capture");
    must(cudaGraphInstantiate(&x, g, 0), "instantiate");
    cudaGraphDestroy(g);
    return x;
}

float replay(bench *b, cudaGraphExec_t g, cudaEvent_t from, cudaEvent_t to)
{
    float ms;
    must(cudaMemsetAsync(b->flush, 1, FLUSH, b->stream), "flush");
    must(cudaEventRecord(from, b->stream), "event");
    must(cudaGraphLaunch(g, b->stream), "launch");
    must(cudaEventRecord(to, b->stream), "event");
    must(cudaEventSynchronize(to), "wait");
    must(cudaEventElapsedTime(&ms, from, to), "time");
    return ms * 1e3f;
}

float median(std::vector<float> v)
{
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}

float time_of(bench *b, int m, int reps)
{
    cudaEvent_t from, to;
    cudaGraphExec_t few = capture(b, m, SHORT), many = capture(b, m, LONG);
    std::vector<float> a, c;
    must(cudaEventCreate(&from), "event");
    must(cudaEventCreate(&to), "event");
    for (int i = 0; i < reps + WARM; i++) {
        float x = replay(b, few, from, to), y = replay(b, many, from, to);
        if (i >= WARM)
            a.push_back(x), c.push_back(y);
    }
    cudaGraphExecDestroy(few);
    cudaGraphExecDestroy(many);
    cudaEventDestroy(from);
    cudaEventDestroy(to);
    return (median(c) - median(a)) / (LONG - SHORT);
}

} // namespace

int main(int argc, char **argv)
{
    static const struct {
        int rows, mode, kind;
    } cases[] = {{64, SOFTMAX, 0}, {64, TEMPERATURE, 0}, {64, DRAW, 0},   {64, TOP_K, 0},
                 {64, TOP_K, 1},   {64, TOP_P, 0},       {64, TOP_P, 1},  {64, TOP_P, 2},
                 {64, BOTH, 0},    {64, TOP_P_ALONE, 0}, {1, TOP_P, 0},   {16, TOP_P, 0},
                 {256, DRAW, 0},   {256, TOP_P, 0},      {256, TOP_P, 1}, {256, TOP_P_ALONE, 0}};
    int reps = argc > 1 ? (int)strtol(argv[1], nullptr, 10) : 15;
    bench b = {};
    if (reps < 3 || reps > MOST_REPS) {
        fprintf(stderr, "sample_peers [REPS], 3 to %d\n", (int)MOST_REPS);
        return 2;
    }
    must(cudaStreamCreate(&b.stream), "stream");
    for (int i = 0; i < COPIES; i++) {
        b.logits.push_back(nullptr), b.probs.push_back(nullptr);
        must(cudaMalloc(&b.logits[i], (size_t)256 * VOCAB * 4), "memory");
        must(cudaMalloc(&b.probs[i], (size_t)256 * VOCAB * 4), "memory");
    }
    must(cudaMalloc(&b.out, 256 * sizeof *b.out), "memory");
    must(cudaMalloc(&b.valid, 256), "memory");
    must(cudaMalloc(&b.work, WORK), "memory");
    must(cudaMalloc(&b.flush, FLUSH), "memory");
    printf("peer,shape,us\n");
    b.rows = b.kind = -1;
    for (const auto &c : cases) {
        if (b.rows != c.rows || b.kind != c.kind)
            prepare(&b, c.rows, c.kind);
        printf("flashinfer,\"%d x %d %s %s\",%.2f\n", c.rows, VOCAB, names[c.mode], kinds[c.kind],
               time_of(&b, c.mode, reps));
        fflush(stdout);
    }
    return 0;
}
