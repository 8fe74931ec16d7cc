#!/usr/bin/env python3
"""What cluster_kv and pq_cache find in the synthetic oracle, restated in float64 from the definitions.

    oracle_restated.py [--seeds 6] [--tokens 16384] [--budget 1024] [--variants]

The generator is that of oracle_data.c, with the same stream of random numbers, and the strategies are those of the papers'
text and of kernels/clusters.h; numpy does the rest, and nothing is shared with the code under test. Prints the lines of
`test_oracle --full` for these two strategies. With --variants also what changes the share of the needles: lists for every
query head, random first centroids, smaller clusters, and needles of other strengths. Needs numpy.
"""
import argparse

import numpy as np

KV, GROUP, DIM, NEEDLES, SINKS, RECENT, TOP = 4, 4, 128, 8, 4, 64, 256
HALF, TOPICS, TOPIC_TOKENS, FAST, SLOW = DIM // 2, 96, 48, 24, DIM // 2 - 12
LOCAL, NEEDLE, TOPIC = 0, 1, 2


class Numbers:
    """splitmix64; normal numbers by Box and Muller, two draws each."""

    def __init__(self, seed):
        self.state = np.uint64(seed * 1000003 + 17)

    def uniform(self, n):
        with np.errstate(over="ignore"):
            x = self.state + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9e3779b97f4a7c15)
            self.state = x[-1]
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
        return (((x ^ (x >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53

    def normal(self, *shape):
        u = self.uniform(2 * int(np.prod(shape))).reshape(*shape, 2)
        return np.sqrt(-2 * np.log(u[..., 0])) * np.cos(2 * np.pi * u[..., 1])


def frequencies():
    w = 5e5 ** (-2.0 * np.arange(HALF) / DIM)
    s = (8192 / (2 * np.pi / w) - 1) / 3
    return np.where(s < 0, w / 8, np.where(s > 1, w, (1 - s) * w / 8 + s * w))


def bf16(x):
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + 0x7FFF)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32).astype(np.float64)


def rope(x, pos):
    """x [..., DIM] at pos [...]."""
    angle = np.asarray(pos)[..., None] * frequencies()
    a, b, c, s = x[..., :HALF], x[..., HALF:], np.cos(angle), np.sin(angle)
    return bf16(np.concatenate([a * c - b * s, a * s + b * c], axis=-1))


def direction(r, first, end):
    out = np.zeros(DIM)
    z = r.normal(end - first, 2)
    out[first:end], out[HALF + first:HALF + end] = z[:, 0], z[:, 1]
    return out / np.sqrt((out * out).sum())


def head_model(r):
    m = {"mean": np.zeros(DIM), "fast": np.zeros(DIM)}
    m["mean"][HALF - 4:HALF] = 5 * r.normal(4)
    m["fast"][:FAST] = 1
    m["mean"] += m["fast"]
    m["sink"], m["needle"] = direction(r, SLOW, HALF - 4), direction(r, FAST, HALF - 4)
    z = r.normal(DIM, 2)
    scale = np.exp(0.5 * z[:, 0])
    m["topic"] = np.zeros((TOPICS, DIM))
    for t in range(TOPICS):
        m["topic"][t] = direction(r, FAST, HALF - 4)
        z = r.normal(DIM)  # the values of the topic, which selection does not see
        m["topic"][t] *= scale
    return m


def make(n, seed, gain=16.0, ask=13.0):
    """Keys [n][KV][DIM] and queries [KV * GROUP][DIM] of the last token, and the needles."""
    r = Numbers(seed)
    topics = np.zeros(n, dtype=np.int64)
    for t in range(n):
        new = t == 0 or r.uniform(1)[0] < 1.0 / TOPIC_TOKENS
        topics[t] = int(r.uniform(1)[0] * TOPICS) if new else topics[t - 1]
    at = (np.arange(NEEDLES) + 0.2 + 0.6 * r.uniform(NEEDLES)) / NEEDLES * 0.9 * n
    needles = at.astype(np.int64) + 16
    models = [head_model(r) for _ in range(KV)]
    k = 0.7 * r.normal(n, KV, DIM, 2)[..., 0]  # of each pair the second one is that of the value
    for h, m in enumerate(models):
        k[:, h] += m["mean"] + 6 * m["topic"][topics]
        k[:SINKS, h] += 14 * m["sink"]
        k[needles, h] += gain * m["needle"]
    q = 0.4 * r.normal(KV * GROUP, DIM)
    for i in range(KV * GROUP):
        m, vary = models[i // GROUP], 0.85 + 0.1 * (i % GROUP)
        q[i] += 7.5 * m["sink"] + vary * (3.0 if i // GROUP == LOCAL else 0.8) * m["fast"]
        if i // GROUP == TOPIC:
            q[i] += 9 * vary * m["topic"][topics[n - 1]]
        if i // GROUP == NEEDLE:
            q[i] += ask * vary * m["needle"]
    return rope(k, np.arange(n)[:, None]), rope(q, np.full(KV * GROUP, n - 1)), needles


def kmeans(points, k, cosine, iterations=20, first=None):
    """Labels and centroids, by the rules of kernels/clusters.h; a label without points keeps its centroid."""
    n = len(points)
    c = points[np.arange(k) * n // k if first is None else first].copy()
    unit = points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-30) if cosine else points

    def label():
        if cosine:
            return (unit @ (c / np.maximum(np.linalg.norm(c, axis=1, keepdims=True), 1e-30)).T).argmax(1)
        return ((c * c).sum(1) - 2 * points @ c.T).argmin(1)
    labels = label()
    for _ in range(iterations):
        for j in np.unique(labels):
            c[j] = points[labels == j].mean(0)
        new = label()
        if (new == labels).all():
            break
        labels = new
    return labels, c


def cluster_kv(k, q, n, budget, per_head=False, tokens=80, random=None, sinks=16):
    """Sets [KV * GROUP][n]. The prompt is all tokens but the last, whose query selects."""
    out = np.zeros((KV * GROUP, n), dtype=bool)
    for v in range(KV):
        pts = k[sinks:n - 1, v]
        clusters = -(-len(pts) // tokens)
        first = None if random is None else np.sort(np.random.default_rng(random).choice(len(pts), clusters, False))
        labels, c = kmeans(pts, clusters, True, first=first)
        scores = q[v * GROUP:(v + 1) * GROUP] @ c.T
        for g in range(GROUP):
            order = np.argsort(-(scores[g] if per_head else scores.max(0)), kind="stable")
            rank = np.empty(clusters, dtype=np.int64)
            rank[order] = np.arange(clusters)
            chosen = np.lexsort((np.arange(len(pts)), rank[labels]))[:budget - sinks]
            s = out[v * GROUP + g]
            s[:sinks] = s[n - 1] = True
            s[sinks + chosen] = True
    return out


def pq_cache(k, q, n, budget, per_head=False, parts=2, bits=6, sinks=32, ratio=0.5, random=None):
    out = np.zeros((KV * GROUP, n), dtype=bool)
    recent = int((budget - sinks) * ratio)
    piece = DIM // parts
    for v in range(KV):
        pts = k[sinks:n - 1, v]
        scores = np.zeros((GROUP, len(pts)))
        for p in range(parts):
            x = pts[:, p * piece:(p + 1) * piece]
            first = None if random is None else np.sort(np.random.default_rng(random + p).choice(len(x), 1 << bits, False))
            labels, c = kmeans(x, 1 << bits, False, first=first)
            scores += (q[v * GROUP:(v + 1) * GROUP, p * piece:(p + 1) * piece] @ c.T)[:, labels]
        coded = scores[:, :n - recent - sinks]
        w = np.exp((coded - coded.max(1, keepdims=True)) / np.sqrt(DIM))
        w /= w.sum(1, keepdims=True)
        for g in range(GROUP):
            chosen = np.argsort(-(w[g] if per_head else w.sum(0)), kind="stable")[:budget - sinks - recent]
            s = out[v * GROUP + g]
            s[:sinks] = s[n - recent:] = True
            s[sinks + chosen] = True
    return out


def measure(k, q, needles, sets, n):
    """mass, without the ends, of the 256 heaviest, of the needles by the heads of that type, and of the worst of these"""
    s = np.einsum("nvd,vgd->vgn", k, q.reshape(KV, GROUP, DIM)).reshape(KV * GROUP, n) / np.sqrt(DIM)
    w = np.exp(s - s.max(1, keepdims=True))
    w /= w.sum(1, keepdims=True)
    inner = slice(SINKS, n - RECENT)
    top = np.argsort(-w, axis=1, kind="stable")[:, :TOP]
    found = sets[NEEDLE * GROUP:(NEEDLE + 1) * GROUP][:, needles].mean(1)
    return np.array([(w * sets).sum(1).mean(), ((w * sets)[:, inner].sum(1) / w[:, inner].sum(1)).mean(),
                     np.take_along_axis(sets, top, 1).mean(), found.mean(), found.min()])


def show(name, rows):
    m = np.mean(rows, axis=0)
    print('"%s",%.3f,%.3f,%.3f,%.2f,%.2f' % (name, m[0], m[1], m[2], m[3], np.min(rows, axis=0)[4]), flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seeds", type=int, default=6)
    p.add_argument("--tokens", type=int, default=16384)
    p.add_argument("--budget", type=int, default=1024)
    p.add_argument("--variants", action="store_true")
    a = p.parse_args()
    print("method,mass,no_ends,top256,needles,needles_min")
    rows = {}

    def add(name, data, sets):
        rows.setdefault(name, []).append(measure(*data, sets, a.tokens))
    for seed in range(1, a.seeds + 1):
        data = make(a.tokens, seed)
        k, q, _ = data
        add("cluster_kv max", data, cluster_kv(k, q, a.tokens, a.budget))
        add("pq_cache 2x6", data, pq_cache(k, q, a.tokens, a.budget))
        if not a.variants:
            continue
        for per_head in (False, True):
            of = ", per query head" if per_head else ""
            add("cluster_kv, 40 tokens" + of, data, cluster_kv(k, q, a.tokens, a.budget, per_head, tokens=40))
            add("cluster_kv, random first centroids" + of, data, cluster_kv(k, q, a.tokens, a.budget, per_head, random=seed))
            add("pq_cache, 1/4 recent" + of, data, pq_cache(k, q, a.tokens, a.budget, per_head, ratio=0.25))
            add("pq_cache, random first centroids" + of, data, pq_cache(k, q, a.tokens, a.budget, per_head, random=seed))
        add("cluster_kv, per query head", data, cluster_kv(k, q, a.tokens, a.budget, True))
        add("pq_cache, per query head", data, pq_cache(k, q, a.tokens, a.budget, True))
        for gain in (24.0, 32.0):
            data = make(a.tokens, seed, gain=gain)
            k, q, _ = data
            add("cluster_kv max, needles of %g" % gain, data, cluster_kv(k, q, a.tokens, a.budget))
            add("pq_cache 2x6, needles of %g" % gain, data, pq_cache(k, q, a.tokens, a.budget))
    for name, of in rows.items():
        show(name, of)


if __name__ == "__main__":
    main()
