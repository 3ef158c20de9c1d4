// ReLU and the maximum over 2×2 windows, for layers.py: forward and backward.
//
// `rows` are those of all planes or images, an even number of each; numbers of neighbouring columns
// lie `channels` apart: 1 where a channel's plane is in one piece, all of them where a pixel's
// channels are. At ties the first of a window in row-major order counts; `corner` is its place, 0 to
// 3, and −1 where ReLU gives 0 (or NaN, which has no gradient).

#include "vectors.h"

#define LOOPS "relupool_loops.h"
#include "both_widths.h"

extern "C" {

#if defined(X86) || defined(ARM)
void simfed_pool(int wide, long rows, long columns, long channels, const float *x, float *pooled,
                 int *corner) {
    AT_WIDTH(pool)(rows, columns, channels, x, pooled, corner);
}

void simfed_pool_back(int wide, long rows, long columns, long channels, const float *gradient,
                      const int *corner, float *into) {
    AT_WIDTH(pool_back)(rows, columns, channels, gradient, corner, into);
}
#endif
}
