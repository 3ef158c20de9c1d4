// Convolution with a 5×5 kernel, ReLU and maximum over 2×2 windows: forward and backward, for
// convpool.py.
//
// Sixteen samples lie side by side: an array of channels, rows and columns has sixteen numbers at
// each place, one of each sample, and a block of sixteen follows another. So vectors are full
// whatever the shape of a layer, and what a sample gets hangs on no other one. Every product is
// added by a fused multiply-add, in an order that convpool_loops.h says, so that processors with
// vectors of eight and of sixteen numbers find the same bits.

#include "vectors.h"

static const int K = 5;

struct Layer {
    long blocks, inputs, height, width, outputs, pooled_height, pooled_width;  // with padding
};

#define LOOPS "convpool_loops.h"
#include "both_widths.h"

// `rows` rows of `columns` numbers each become columns: number i of row r goes to to[i × step + r].
// `stride`: from a row to the next.
static void turn(const float *from, long stride, long rows, long columns, float *to, long step) {
    long r = 0;
#if defined(X86) || defined(ARM)
    typedef float Four __attribute__((vector_size(16), aligned(4)));
    typedef int Places __attribute__((vector_size(16)));
#ifdef __clang__
#define MIXED(one, other, ...) __builtin_shufflevector(one, other, __VA_ARGS__)
#else
#define MIXED(one, other, ...) __builtin_shuffle(one, other, (Places){__VA_ARGS__})
#endif
    for (; r + 4 <= rows; r += 4) {
        long i = 0;
        for (; i + 4 <= columns; i += 4) {
            const float *at = from + r * stride + i;
            const Four a = *(const Four *)at, b = *(const Four *)(at + stride),
                       c = *(const Four *)(at + 2 * stride), d = *(const Four *)(at + 3 * stride);
            const Four ab = MIXED(a, b, 0, 4, 1, 5),
                       AB = MIXED(a, b, 2, 6, 3, 7),
                       cd = MIXED(c, d, 0, 4, 1, 5),
                       CD = MIXED(c, d, 2, 6, 3, 7);
            float *into = to + i * step + r;
            *(Four *)into = MIXED(ab, cd, 0, 1, 4, 5);
            *(Four *)(into + step) = MIXED(ab, cd, 2, 3, 6, 7);
            *(Four *)(into + 2 * step) = MIXED(AB, CD, 0, 1, 4, 5);
            *(Four *)(into + 3 * step) = MIXED(AB, CD, 2, 3, 6, 7);
        }
        for (; i < columns; i++)
            for (long k = 0; k < 4; k++) to[i * step + r + k] = from[(r + k) * stride + i];
    }
#endif
    for (; r < rows; r++)
        for (long i = 0; i < columns; i++) to[i * step + r] = from[r * stride + i];
}

extern "C" {

#if defined(X86) || defined(ARM)
void simfed_forward(int wide, const Layer *layer, const float *x, const float *weight,
                    const float *bias, float *pooled, int *corner) {
    AT_WIDTH(forward)(*layer, x, weight, bias, pooled, corner);
}

void simfed_weight_gradient(int wide, const Layer *layer, const float *x, const float *gradient,
                            const int *corner, float *into_weight, float *into_bias) {
    AT_WIDTH(weight_gradient)(*layer, x, gradient, corner, into_weight, into_bias);
}

void simfed_input_gradient(int wide, const Layer *layer, const float *gradient, const int *corner,
                           const float *weight, float *spread, float *into) {
    AT_WIDTH(input_gradient)(*layer, gradient, corner, weight, spread, into);
}
#endif

// (samples, channels, height, width) → blocks of samples side by side, with a border of zeros; the
// places in the last block that no sample takes are zero.
void simfed_side_by_side(const float *from, long samples, long channels, long height, long width,
                         long padding, float *to) {
    const long columns = (width + 2 * padding) * LANES, border = padding * LANES;
    const long sample = channels * height * width, plane = (height + 2 * padding) * columns;
    for (long first = 0; first < samples; first += LANES) {
        const long here = samples - first < LANES ? samples - first : LANES;
        for (long c = 0; c < channels; c++, to += plane) {
            for (long i = 0; i < padding * columns; i++) to[i] = to[plane - 1 - i] = 0;
            for (long y = 0; y < height; y++) {
                const float *source = from + first * sample + (c * height + y) * width;
                float *row = to + (y + padding) * columns;
                for (long i = 0; i < border; i++) row[i] = row[columns - 1 - i] = 0;
                turn(source, sample, here, width, row + border, LANES);
                for (long x = 0; here < LANES && x < width; x++)
                    for (long lane = here; lane < LANES; lane++) row[border + x * LANES + lane] = 0;
            }
        }
    }
}

// Blocks of samples side by side → (samples, features).
void simfed_one_by_one(const float *from, long samples, long features, float *to) {
    for (long first = 0; first < samples; first += LANES) {
        const long here = samples - first < LANES ? samples - first : LANES;
        turn(from + first * features, LANES, features, here, to + first * features, features);
    }
}

// Adds the sum over the sixteen lanes, halves first, to each of `count` numbers.
void simfed_add_lanes(const float *lanes, long count, float *into) {
    for (long i = 0; i < count; i++, lanes += LANES) {
        float sum[8];
        for (int lane = 0; lane < 8; lane++) sum[lane] = lanes[lane] + lanes[lane + 8];
        for (int lane = 0; lane < 4; lane++) sum[lane] += sum[lane + 4];
        into[i] += (sum[0] + sum[2]) + (sum[1] + sum[3]);
    }
}
}
