// The loops of relupool.cpp, included once for each width of vectors. They add and multiply nothing,
// so that no width and no order changes a bit.

typedef float V __attribute__((vector_size(WIDTH * 4), aligned(4)));
typedef int I __attribute__((vector_size(WIDTH * 4), aligned(4)));

// WIDTH windows: the numbers of each in row-major order.
static inline void windows(V a, V b, V c, V d, float *pooled, int *corner) {
    const I left = a >= b, lower_left = c >= d;
    const V upper = (left | (a != a)) ? a : b, lower = (lower_left | (c != c)) ? c : d;
    const I top = upper >= lower;
    const V best = (top | (upper != upper)) ? upper : lower;
    const I which = top ? (left ? I{} : I{} + 1) : (lower_left ? I{} + 2 : I{} + 3);
    *(V *)pooled = (best <= V{}) ? V{} : best;
    *(I *)corner = (best > V{}) ? which : I{} - 1;
}

// The numbers at even and at odd places of 2 WIDTH.
static inline void apart(const float *from, V *even, V *odd) {
    for (int i = 0; i < WIDTH; i++) {
        (*even)[i] = from[2 * i];
        (*odd)[i] = from[2 * i + 1];
    }
}

// `count` windows beside each other in one row of a plane, whose rows are `row` apart.
static inline void pool_planes(long count, long row, const float *x, float *pooled, int *corner) {
    V a, b, c, d;
    long i = 0;
    for (; i + WIDTH <= count; i += WIDTH) {
        apart(x + 2 * i, &a, &b);
        apart(x + row + 2 * i, &c, &d);
        windows(a, b, c, d, pooled + i, corner + i);
    }
    if (i == count) return;
    float upper[2 * WIDTH] = {}, lower[2 * WIDTH] = {}, best[WIDTH];
    int which[WIDTH];
    for (long k = 0; k < 2 * (count - i); k++) {
        upper[k] = x[2 * i + k];
        lower[k] = x[row + 2 * i + k];
    }
    apart(upper, &a, &b);
    apart(lower, &c, &d);
    windows(a, b, c, d, best, which);
    for (long k = i; k < count; k++) {
        pooled[k] = best[k - i];
        corner[k] = which[k - i];
    }
}

// One window in each of so many channels, which lie beside each other.
static inline void pool_pixels(long channels, long row, const float *x, float *pooled,
                               int *corner) {
    long c = 0;
    for (; c + WIDTH <= channels; c += WIDTH) {
        const float *from = x + c;
        windows(*(const V *)from, *(const V *)(from + channels), *(const V *)(from + row),
                *(const V *)(from + row + channels), pooled + c, corner + c);
    }
    if (c == channels) return;
    V of[4] = {};
    float best[WIDTH];
    int which[WIDTH];
    for (long k = c; k < channels; k++)
        for (int i = 0; i < 4; i++) of[i][k - c] = x[i / 2 * row + i % 2 * channels + k];
    windows(of[0], of[1], of[2], of[3], best, which);
    for (long k = c; k < channels; k++) {
        pooled[k] = best[k - c];
        corner[k] = which[k - c];
    }
}

static void pool(long rows, long columns, long channels, const float *x, float *pooled,
                 int *corner) {
    const long row = columns * channels;
    for (long r = 0; r < rows / 2; r++, x += 2 * row, pooled += row / 2, corner += row / 2) {
        if (channels == 1)
            pool_planes(columns / 2, row, x, pooled, corner);
        else
            for (long i = 0; i < columns / 2; i++)
                pool_pixels(channels, row, x + 2 * i * channels, pooled + i * channels,
                            corner + i * channels);
    }
}

// What goes to the windows' numbers in one row of `x`: those of the upper one have places 0 and 1.
static inline void back_row(long windows, long channels, int place, const float *__restrict gradient,
                            const int *__restrict corner, float *__restrict to) {
    if (channels == 1) {
        for (long i = 0; i < windows; i++) {
            to[2 * i] = corner[i] == place ? gradient[i] : 0;
            to[2 * i + 1] = corner[i] == place + 1 ? gradient[i] : 0;
        }
        return;
    }
    for (long i = 0; i < windows; i++, gradient += channels, corner += channels, to += 2 * channels)
        for (long c = 0; c < channels; c++) {
            to[c] = corner[c] == place ? gradient[c] : 0;
            to[channels + c] = corner[c] == place + 1 ? gradient[c] : 0;
        }
}

static void pool_back(long rows, long columns, long channels, const float *gradient,
                      const int *corner, float *into) {
    const long row = columns * channels;
    for (long r = 0; r < rows / 2; r++, into += 2 * row, gradient += row / 2, corner += row / 2) {
        back_row(columns / 2, channels, 0, gradient, corner, into);
        back_row(columns / 2, channels, 2, gradient, corner, into + row);
    }
}
