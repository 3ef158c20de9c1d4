// The loops of outer.cpp, included once for each width of vectors, in a namespace of its own. No lane
// meets another one, and each sum has one order, so that the width changes no bit.

typedef float V __attribute__((vector_size(WIDTH * 4), aligned(4)));

// `OUTPUTS` rows of the product at `VECTORS` vectors of columns.
template <int OUTPUTS, int VECTORS>
static inline void outer_tile(const float *outer, const float *x, float *into, const Outer &of) {
    V sum[OUTPUTS][VECTORS] = {};
    for (long s = 0; s < of.samples; s++, outer += of.outputs, x += of.inputs)
UNROLLED
        for (int o = 0; o < OUTPUTS; o++)
UNROLLED
            for (int v = 0; v < VECTORS; v++)
                sum[o][v] += ((const V *)x)[v] * (V{} + outer[o]);
UNROLLED
    for (int o = 0; o < OUTPUTS; o++)
UNROLLED
        for (int v = 0; v < VECTORS; v++) {
            V *at = (V *)(into + o * of.inputs) + v;
            *at = of.adds ? sum[o][v] * (V{} + of.factor) + *at : sum[o][v];
        }
}

template <int OUTPUTS>
static inline void outer_rows(const float *outer, const float *x, float *into, const Outer &of) {
    long i = 0;
    for (; i + 2 * WIDTH <= of.inputs; i += 2 * WIDTH)
        outer_tile<OUTPUTS, 2>(outer, x + i, into + i, of);
    for (; i + WIDTH <= of.inputs; i += WIDTH) outer_tile<OUTPUTS, 1>(outer, x + i, into + i, of);
    for (; i < of.inputs; i++)
        for (int o = 0; o < OUTPUTS; o++) {
            float sum = 0, *at = into + o * of.inputs + i;
            for (long s = 0; s < of.samples; s++)
                sum = __builtin_fmaf(x[s * of.inputs + i], outer[s * of.outputs + o], sum);
            *at = of.adds ? __builtin_fmaf(sum, of.factor, *at) : sum;
        }
}

static void outer_product(const Outer &of, const float *outer, const float *x, float *into) {
    long o = 0;
    for (; o + 4 <= of.outputs; o += 4) outer_rows<4>(outer + o, x, into + o * of.inputs, of);
    for (; o < of.outputs; o++) outer_rows<1>(outer + o, x, into + o * of.inputs, of);
}
