// The loops of linear.cpp, included once for each width of vectors, in a namespace of its own.
// WIDTH is how many numbers a vector holds; SAMPLES and OUTPUTS say of how many of each sums are
// kept in registers at once. None of them changes a bit of a result: each number has one order.

#undef SAMPLES
#undef OUTPUTS
#if WIDTH == 16
#define SAMPLES 4
#define OUTPUTS 4
#else
#define SAMPLES 2
#define OUTPUTS 2
#endif

typedef float V __attribute__((vector_size(WIDTH * 4)));
typedef float Anywhere __attribute__((vector_size(WIDTH * 4), aligned(4)));
static const int PARTS = LANES / WIDTH;

typedef int I __attribute__((vector_size(WIDTH * 4)));

static inline V load(const float *from) { return *(const Anywhere *)from; }
static inline void store(float *to, V value) { *(Anywhere *)to = value; }

// The first `count` numbers, then zeros; and the other way.
static inline V load(const float *from, long count) {
    if (count >= WIDTH) return load(from);
#if defined(X86) && WIDTH == 16
    return (V)_mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), from);
#elif defined(X86)
    return (V)_mm256_maskload_ps(from, _mm256_loadu_si256((const __m256i *)(FIRST + 8 - count)));
#else
    float filled[WIDTH] = {};
    for (long i = 0; i < count; i++) filled[i] = from[i];
    return load(filled);
#endif
}

static inline void store(float *to, V value, long count) {
    if (count >= WIDTH) return store(to, value);
    for (long i = 0; i < count; i++) to[i] = value[i];
}

// a × b + onto, where GCC for ARM, which cuts these vectors into halves, may forget to fuse them.
static inline V fused(V a, V b, V onto) {
#ifdef ARM
    union Halves { V all; float32x4_t halves[2]; } x = {a}, y = {b}, sum = {onto};
    for (int i = 0; i < 2; i++) sum.halves[i] = vfmaq_f32(sum.halves[i], x.halves[i], y.halves[i]);
    return sum.all;
#else
    return onto + a * b;
#endif
}

static inline float sum_of_lanes(const V *parts) {
#if WIDTH == 16
    union { V all; Eight halves[2]; } whole = {parts[0]};
    const Eight eight = whole.halves[0] + whole.halves[1];
#else
    const Eight eight = parts[0] + parts[1];
#endif
    union { Eight all; Four halves[2]; } half = {eight};
    const Four four = half.halves[0] + half.halves[1];
    return (four[0] + four[2]) + (four[1] + four[3]);
}

// Of S samples and O outputs: lane l adds the products of the inputs l, l + 16, l + 32, …; then the
// lanes are added up, halves first, and the bias is added.
template <int S, int O>
static inline void dots(const Linear &layer, const float *x, const float *weight,
                        const float *bias, float *y) {
    const long inputs = layer.inputs;
    V sum[S][O][PARTS] = {};
    long i = 0;
    for (; i + LANES <= inputs; i += LANES)
UNROLLED
        for (int part = 0; part < PARTS; part++) {
            const float *from = x + i + part * WIDTH, *w = weight + i + part * WIDTH;
            V of_sample[S];
UNROLLED
            for (int s = 0; s < S; s++) of_sample[s] = load(from + s * inputs);
UNROLLED
            for (int o = 0; o < O; o++) {
                const V of_output = load(w + o * inputs);
UNROLLED
                for (int s = 0; s < S; s++) sum[s][o][part] += of_sample[s] * of_output;
            }
        }
UNROLLED
    for (int part = 0; part < PARTS; part++, i += WIDTH) {
        if (i >= inputs) break;
        V of_sample[S];
UNROLLED
        for (int s = 0; s < S; s++) of_sample[s] = load(x + s * inputs + i, inputs - i);
UNROLLED
        for (int o = 0; o < O; o++) {
            const V of_output = load(weight + o * inputs + i, inputs - i);
UNROLLED
            for (int s = 0; s < S; s++) sum[s][o][part] += of_sample[s] * of_output;
        }
    }
UNROLLED
    for (int s = 0; s < S; s++)
UNROLLED
        for (int o = 0; o < O; o++) {
            const float found = sum_of_lanes(sum[s][o]);
            y[s * layer.outputs + o] = bias ? found + bias[o] : found;
        }
}

template <int S>
static void dots_of(const Linear &layer, const float *x, const float *weight, const float *bias,
                    float *y) {
    for (long o = 0; o < layer.outputs;) {
        const long group = fair_share(layer.outputs - o, OUTPUTS);
        const float *w = weight + o * layer.inputs, *b = bias ? bias + o : 0;
        switch (group) {
            case 1: dots<S, 1>(layer, x, w, b, y + o); break;
            case 2: dots<S, 2>(layer, x, w, b, y + o); break;
#if OUTPUTS > 2
            case 3: dots<S, 3>(layer, x, w, b, y + o); break;
            case 4: dots<S, 4>(layer, x, w, b, y + o); break;
#endif
        }
        o += group;
    }
}

static void forward(const Linear &layer, const float *x, const float *weight, const float *bias,
                    float *y) {
    for (long s = 0; s < layer.samples;) {
        const long group = fair_share(layer.samples - s, SAMPLES);
        const float *from = x + s * layer.inputs;
        float *to = y + s * layer.outputs;
        switch (group) {
            case 1: dots_of<1>(layer, from, weight, bias, to); break;
            case 2: dots_of<2>(layer, from, weight, bias, to); break;
#if SAMPLES > 2
            case 3: dots_of<3>(layer, from, weight, bias, to); break;
            case 4: dots_of<4>(layer, from, weight, bias, to); break;
#endif
        }
        s += group;
    }
}

// ROWS rows of `length` sums Σ scale × x over `count` terms, in order: the row itself, or, where it
// is to move, what is taken from it times the rate. A term's x are `length` after the last one's,
// its scales `by_term`, and a row's `by_row`.
struct Sums {
    long length, count, by_term, by_row;
    float rate;
    bool moves;
};

template <int ROWS, int COLUMNS>
static inline void some_columns(const Sums &sums, const float *scale, const float *x, float *into,
                                long width) {
    V sum[ROWS][COLUMNS] = {};
    for (long term = 0; term < sums.count; term++, scale += sums.by_term, x += sums.length) {
        V of_column[COLUMNS];
UNROLLED
        for (int c = 0; c < COLUMNS; c++) of_column[c] = load(x + c * WIDTH, width);
UNROLLED
        for (int r = 0; r < ROWS; r++) {
            const V factor = V{} + scale[r * sums.by_row];
UNROLLED
            for (int c = 0; c < COLUMNS; c++) sum[r][c] += of_column[c] * factor;
        }
    }
UNROLLED
    for (int r = 0; r < ROWS; r++)
UNROLLED
        for (int c = 0; c < COLUMNS; c++) {
            float *to = into + r * sums.length + c * WIDTH;
            V found = sum[r][c];
            if (sums.moves) found = fused(found, V{} - sums.rate, load(to, width));
            store(to, found, width);
        }
}

template <int ROWS>
static void some_rows(const Sums &sums, const float *scale, const float *x, float *into,
                      long columns) {
    long i = 0;
    for (; i + 2 * WIDTH <= columns; i += 2 * WIDTH)
        some_columns<ROWS, 2>(sums, scale, x + i, into + i, WIDTH);
    for (; i < columns; i += WIDTH)
        some_columns<ROWS, 1>(sums, scale, x + i, into + i, columns - i);
}

// Column by column of tiles: what is read of x stays in the first-level cache for all rows.
static void rows_of_sums(const Sums &sums, long rows, const float *scale, const float *x,
                         float *into) {
    for (long i = 0; i < sums.length; i += TILE) {
        const long columns = sums.length - i < TILE ? sums.length - i : TILE;
        for (long r = 0; r < rows;) {
            const long group = fair_share(rows - r, 5);
            const float *factors = scale + r * sums.by_row;
            float *to = into + r * sums.length + i;
            switch (group) {
                case 1: some_rows<1>(sums, factors, x + i, to, columns); break;
                case 2: some_rows<2>(sums, factors, x + i, to, columns); break;
                case 3: some_rows<3>(sums, factors, x + i, to, columns); break;
                case 4: some_rows<4>(sums, factors, x + i, to, columns); break;
                case 5: some_rows<5>(sums, factors, x + i, to, columns); break;
            }
            r += group;
        }
    }
}

// The gradient in the weights adds up by sample, that in the bias too.
static void weight_gradient(const Linear &layer, const float *gradient, const float *x,
                            float *weight, float *bias, float rate, bool moves) {
    const long outputs = layer.outputs;
    const Sums sums = {layer.inputs, layer.samples, outputs, 1, rate, moves};
    rows_of_sums(sums, outputs, gradient, x, weight);
    if (!bias) return;
    for (long o = 0; o < outputs; o++) {
        float sum = 0;
        for (long s = 0; s < layer.samples; s++) sum += gradient[s * outputs + o];
        bias[o] = moves ? __builtin_fmaf(-rate, sum, bias[o]) : sum;
    }
}

// The gradient in the inputs adds up by output.
static void input_gradient(const Linear &layer, const float *gradient, const float *weight,
                           float *into) {
    const Sums sums = {layer.inputs, layer.outputs, 1, layer.outputs, 0, false};
    rows_of_sums(sums, layer.samples, gradient, weight, into);
}

// e to the power of numbers that are 0 or less, within 2 units in the last place; 0 below −87. By
// powers of two and, between them, the polynomial of the Cephes library.
static inline V exponential(V x) {
    const V magic = V{} + 12582912.0f;  // added to a small number, it leaves the nearest integer
    const V shifted = x * 1.44269504f + magic, power = shifted - magic;
    const V r = x - power * 0.693359375f - power * -2.12194440e-4f;
    V series = V{} + 1.9875691500e-4f;
    series = series * r + 1.3981999507e-3f;
    series = series * r + 8.3334519073e-3f;
    series = series * r + 4.1665795894e-2f;
    series = series * r + 1.6666665459e-1f;
    series = series * r + 5.0000001201e-1f;
    series = series * (r * r) + r + 1.0f;
    const V found = series * (V)(((I)shifted - (I)magic + 127) << 23);
    return x < -87.0f ? V{} : x == x ? found : x;
}

// The mean over samples of log Σ exp(logits) − that of the label, and its gradient in the logits.
// Labels are below `classes`.
static float cross_entropy(long samples, long classes, const float *logits, const long long *labels,
                           float *gradient) {
    double total = 0;
    for (long s = 0; s < samples; s++, logits += classes, gradient += classes) {
        float most = logits[0];
        for (long c = 1; c < classes; c++) most = logits[c] > most ? logits[c] : most;
        V sum[PARTS] = {};
        for (long c = 0; c < classes; c += WIDTH) {
            I place;
UNROLLED
            for (int i = 0; i < WIDTH; i++) place[i] = i;
            V found = exponential(load(logits + c, classes - c) - most);
            found = place < (int)(classes - c < WIDTH ? classes - c : WIDTH) ? found : V{};
            sum[c / WIDTH % PARTS] += found;
            store(gradient + c, found, classes - c);
        }
        const float all = sum_of_lanes(sum);
        const V share = V{} + all * samples;
        for (long c = 0; c < classes; c += WIDTH)
            store(gradient + c, load(gradient + c, classes - c) / share, classes - c);
        gradient[labels[s]] -= 1.0f / samples;
        total += log((double)all) + most - logits[labels[s]];
    }
    return (float)(total / samples);
}
