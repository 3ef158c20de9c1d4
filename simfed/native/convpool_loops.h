// The loops of convpool.cpp, included once for each width of vectors, in a namespace of its own.
// WIDTH is the number of samples in a vector; FORWARD_OUTPUTS, WEIGHT_OUTPUTS and BACK_INPUTS say
// for how many channels at once sums are kept in registers. None of them changes a bit of a result:
// a lane never meets another one here, and each lane's sums have one order.

#undef FORWARD_OUTPUTS
#undef WEIGHT_OUTPUTS
#undef BACK_INPUTS
#if WIDTH == 16
#define FORWARD_OUTPUTS 4
#define WEIGHT_OUTPUTS 3
#define BACK_INPUTS 2
#else
#define FORWARD_OUTPUTS 2
#define WEIGHT_OUTPUTS 2
#define BACK_INPUTS 1
#endif

typedef float V __attribute__((vector_size(WIDTH * 4)));
typedef int I __attribute__((vector_size(WIDTH * 4)));

static inline V load(const float *from) {
    return *(const V *)__builtin_assume_aligned(from, WIDTH * 4);
}
static inline I load(const int *from) {
    return *(const I *)__builtin_assume_aligned(from, WIDTH * 4);
}
static inline void store(float *to, V value) {
    *(V *)__builtin_assume_aligned(to, WIDTH * 4) = value;
}
static inline void store(int *to, I value) {
    *(I *)__builtin_assume_aligned(to, WIDTH * 4) = value;
}

// Each output is the bias, to which the products are added by input channel, row and column of the
// kernel. The four results under a window are made at once, for several outputs.
template <int OUTPUTS>
static inline void forward_outputs(const Layer &layer, const float *x, const float *weight,
                                   const float *bias, float *pooled, int *corner) {
    const long row = layer.width * LANES, plane = layer.height * row;
    const long taps = layer.inputs * K * K;
    const long windows = layer.pooled_height * layer.pooled_width * LANES;
    for (long py = 0; py < layer.pooled_height; py++)
        for (long px = 0; px < layer.pooled_width; px++)
            for (int lane = 0; lane < LANES; lane += WIDTH) {
                V sum[OUTPUTS][4];
UNROLLED
                for (int o = 0; o < OUTPUTS; o++)
UNROLLED
                    for (int i = 0; i < 4; i++) sum[o][i] = V{} + bias[o];
                const float *w = weight;
                for (long c = 0; c < layer.inputs; c++)
                    for (int ky = 0; ky < K; ky++) {
                        const float *from =
                            x + c * plane + (2 * py + ky) * row + 2 * px * LANES + lane;
UNROLLED
                        for (int kx = 0; kx < K; kx++, from += LANES, w++) {
                            const V under[4] = {load(from), load(from + LANES), load(from + row),
                                                load(from + row + LANES)};
UNROLLED
                            for (int o = 0; o < OUTPUTS; o++) {
                                const V scale = V{} + w[o * taps];
UNROLLED
                                for (int i = 0; i < 4; i++) sum[o][i] += under[i] * scale;
                            }
                        }
                    }
UNROLLED
                for (int o = 0; o < OUTPUTS; o++) {
                    V best = sum[o][0];
                    I which = I{};
UNROLLED
                    for (int i = 1; i < 4; i++) {
                        // the first at ties, and NaN where there is one
                        const I better = (sum[o][i] > best) | (sum[o][i] != sum[o][i]);
                        best = better ? sum[o][i] : best;
                        which = better ? I{} + i : which;
                    }
                    const I dead = best <= V{};
                    const long at = o * windows + (py * layer.pooled_width + px) * LANES + lane;
                    store(pooled + at, dead ? V{} : best);
                    if (corner) store(corner + at, dead ? I{} - 1 : which);
                }
            }
}

static void forward(const Layer &layer, const float *x, const float *weight, const float *bias,
                    float *pooled, int *corner) {
    const long taps = layer.inputs * K * K;
    const long windows = layer.pooled_height * layer.pooled_width * LANES;
    for (long block = 0; block < layer.blocks; block++) {
        for (long o = 0; o < layer.outputs;) {
            const long at = o * windows, group = fair_share(layer.outputs - o, FORWARD_OUTPUTS);
            const float *w = weight + o * taps, *b = bias + o;
            float *to = pooled + at;
            int *which = corner ? corner + at : 0;
            switch (group) {
                case 1: forward_outputs<1>(layer, x, w, b, to, which); break;
                case 2: forward_outputs<2>(layer, x, w, b, to, which); break;
#if FORWARD_OUTPUTS > 2
                case 3: forward_outputs<3>(layer, x, w, b, to, which); break;
                case 4: forward_outputs<4>(layer, x, w, b, to, which); break;
#endif
            }
            o += group;
        }
        x += layer.inputs * layer.height * layer.width * LANES;
        pooled += layer.outputs * windows;
        if (corner) corner += layer.outputs * windows;
    }
}

// The products are added window by window, in each window by row and column.
template <int OUTPUTS>
static inline void weight_outputs(const Layer &layer, const float *x, const float *gradient,
                                  const int *corner, float *into) {
    const long row = layer.width * LANES, plane = layer.height * row;
    const long taps = layer.inputs * K * K;
    const long windows = layer.pooled_height * layer.pooled_width * LANES;
    for (long c = 0; c < layer.inputs; c++)
        for (int ky = 0; ky < K; ky++)
            for (int lane = 0; lane < LANES; lane += WIDTH) {
                V sum[OUTPUTS][K];
UNROLLED
                for (int o = 0; o < OUTPUTS; o++)
UNROLLED
                    for (int kx = 0; kx < K; kx++) sum[o][kx] = V{};
                for (long py = 0; py < layer.pooled_height; py++) {
                    const float *from = x + c * plane + (2 * py + ky) * row + lane;
                    const long at = py * layer.pooled_width * LANES + lane;
                    for (long px = 0; px < layer.pooled_width; px++) {
                        V above[OUTPUTS];
                        I which[OUTPUTS];
UNROLLED
                        for (int o = 0; o < OUTPUTS; o++) {
                            above[o] = load(gradient + o * windows + at + px * LANES);
                            which[o] = load(corner + o * windows + at + px * LANES);
                        }
UNROLLED
                        for (int r = 0; r < 2; r++) {
                            V samples[K + 1];
UNROLLED
                            for (int i = 0; i <= K; i++)
                                samples[i] = load(from + r * row + (2 * px + i) * LANES);
UNROLLED
                            for (int q = 0; q < 2; q++)
UNROLLED
                                for (int o = 0; o < OUTPUTS; o++) {
                                    const V here = which[o] == 2 * r + q ? above[o] : V{};
UNROLLED
                                    for (int kx = 0; kx < K; kx++)
                                        sum[o][kx] += here * samples[q + kx];
                                }
                        }
                    }
                }
UNROLLED
                for (int o = 0; o < OUTPUTS; o++)
UNROLLED
                    for (int kx = 0; kx < K; kx++) {
                        float *to = into + (o * taps + (c * K + ky) * K + kx) * LANES + lane;
                        store(to, load(to) + sum[o][kx]);
                    }
            }
}

static void weight_gradient(const Layer &layer, const float *x, const float *gradient,
                            const int *corner, float *into_weight, float *into_bias) {
    const long taps = layer.inputs * K * K;
    const long windows = layer.pooled_height * layer.pooled_width * LANES;
    for (long block = 0; block < layer.blocks; block++) {
        for (long o = 0; o < layer.outputs; o++)
            for (int lane = 0; lane < LANES; lane += WIDTH) {
                V sum = V{};
                for (long at = o * windows + lane; at < (o + 1) * windows; at += LANES)
                    sum += load(corner + at) >= 0 ? load(gradient + at) : V{};
                float *to = into_bias + o * LANES + lane;
                store(to, load(to) + sum);
            }
        for (long o = 0; o < layer.outputs;) {
            const long at = o * windows, group = fair_share(layer.outputs - o, WEIGHT_OUTPUTS);
            const float *g = gradient + at;
            const int *which = corner + at;
            float *to = into_weight + o * taps * LANES;
            switch (group) {
                case 1: weight_outputs<1>(layer, x, g, which, to); break;
                case 2: weight_outputs<2>(layer, x, g, which, to); break;
#if WEIGHT_OUTPUTS > 2
                case 3: weight_outputs<3>(layer, x, g, which, to); break;
#endif
            }
            o += group;
        }
        x += layer.inputs * layer.height * layer.width * LANES;
        gradient += layer.outputs * windows;
        corner += layer.outputs * windows;
    }
}

// The products are added by output channel, row and column of the kernel.
template <int INPUTS, int TILE>
static inline void input_tile(const Layer &layer, const float *spread, const float *weight, long y,
                              long x, float *into) {
    const long rows = 2 * layer.pooled_height, columns = 2 * layer.pooled_width + 2 * (K - 1);
    const long taps = layer.inputs * K * K, plane = layer.height * layer.width * LANES;
    const long first = y >= rows ? y - rows + 1 : 0, last = y < K - 1 ? y : K - 1;
    for (int lane = 0; lane < LANES; lane += WIDTH) {
        V sum[INPUTS][TILE];
UNROLLED
        for (int i = 0; i < INPUTS; i++)
UNROLLED
            for (int t = 0; t < TILE; t++) sum[i][t] = V{};
        for (long o = 0; o < layer.outputs; o++)
            for (long ky = first; ky <= last; ky++) {
                const float *from = spread + ((o * rows + y - ky) * columns + x) * LANES + lane;
                const float *w = weight + o * taps + ky * K;
                V above[TILE + K - 1];
UNROLLED
                for (int t = 0; t < TILE + K - 1; t++) above[t] = load(from + t * LANES);
UNROLLED
                for (int kx = 0; kx < K; kx++)
UNROLLED
                    for (int i = 0; i < INPUTS; i++) {
                        const V scale = V{} + w[i * K * K + kx];
UNROLLED
                        for (int t = 0; t < TILE; t++) sum[i][t] += above[t + K - 1 - kx] * scale;
                    }
            }
UNROLLED
        for (int i = 0; i < INPUTS; i++)
UNROLLED
            for (int t = 0; t < TILE; t++)
                store(into + i * plane + (y * layer.width + x + t) * LANES + lane, sum[i][t]);
    }
}

template <int INPUTS>
static inline void input_channels(const Layer &layer, const float *spread, const float *weight,
                                  float *into) {
    for (long y = 0; y < layer.height; y++) {
        long x = 0;
        if (layer.width % 7 == 0)
            for (; x < layer.width; x += 7)
                input_tile<INPUTS, 7>(layer, spread, weight, y, x, into);
        for (; x + 8 <= layer.width; x += 8)
            input_tile<INPUTS, 8>(layer, spread, weight, y, x, into);
        for (; x + 2 <= layer.width; x += 2)
            input_tile<INPUTS, 2>(layer, spread, weight, y, x, into);
    }
}

// spread: (outputs, 2 pooled_height, 2 pooled_width + 8, LANES), zero in its first and last four
// columns.
static void input_gradient(const Layer &layer, const float *gradient, const int *corner,
                           const float *weight, float *spread, float *into) {
    const long columns = 2 * layer.pooled_width + 2 * (K - 1);
    const long plane = layer.height * layer.width * LANES;
    for (long block = 0; block < layer.blocks; block++) {
        for (long line = 0; line < layer.outputs * layer.pooled_height; line++)
            for (long px = 0; px < layer.pooled_width; px++, gradient += LANES, corner += LANES)
                for (int lane = 0; lane < LANES; lane += WIDTH)
                    for (int i = 0; i < 4; i++) {
                        const long at = (2 * line + i / 2) * columns + K - 1 + 2 * px + i % 2;
                        store(spread + at * LANES + lane,
                              load(corner + lane) == i ? load(gradient + lane) : V{});
                    }
        for (long c = 0; c < layer.inputs;) {
            if (layer.inputs - c >= BACK_INPUTS) {
                input_channels<BACK_INPUTS>(layer, spread, weight + c * K * K, into + c * plane);
                c += BACK_INPUTS;
            } else {
                input_channels<1>(layer, spread, weight + c * K * K, into + c * plane);
                c += 1;
            }
        }
        into += layer.inputs * plane;
    }
}
