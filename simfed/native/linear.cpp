// Linear layers of one model or of many, each on samples of its own, forward and backward, and the
// cross-entropy behind them, for linear_loops.py.
//
// A library's products of stacks make a call per model at these sizes, and those of ten samples
// reach a tenth of its rate. Every product is added by a fused multiply-add, in an order that
// linear_loops.h says, so that processors with vectors of eight and of sixteen numbers find the
// same bits, and what a model gets hangs on no other one.

#include <math.h>

#include "vectors.h"

#ifdef X86
#include <immintrin.h>
// Masks of the first numbers of eight: from place 8 − count.
static const int FIRST[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
#elif defined(ARM)
#include <arm_neon.h>
#endif

static const long TILE = 256;  // columns; measured

struct Linear {
    long models, samples, inputs, outputs;
    long stride;  // from a model's parameters to the next one's
};

#if defined(X86) || defined(ARM)
typedef float Eight __attribute__((vector_size(32)));
typedef float Four __attribute__((vector_size(16)));
#endif

#define LOOPS "linear_loops.h"
#include "both_widths.h"

#if defined(X86) || defined(ARM)
extern "C" {

// x: (models, samples, inputs), y: (models, samples, outputs); bias may be missing.
void simfed_linear_forward(int wide, const Linear *layer, const float *x, const float *weight,
                           const float *bias, float *y) {
    for (long m = 0; m < layer->models; m++) {
        AT_WIDTH(forward)(*layer, x, weight, bias, y);
        x += layer->samples * layer->inputs;
        y += layer->samples * layer->outputs;
        weight += layer->stride;
        if (bias) bias += layer->stride;
    }
}

// gradient: (models, samples, outputs). Weights and biases become the gradients, or, where they are
// to move, go `rate` times these down.
void simfed_linear_weight_gradient(int wide, const Linear *layer, const float *gradient,
                                   const float *x, float *weight, float *bias, float rate,
                                   int moves) {
    for (long m = 0; m < layer->models; m++) {
        AT_WIDTH(weight_gradient)(*layer, gradient, x, weight, bias, rate, moves);
        x += layer->samples * layer->inputs;
        gradient += layer->samples * layer->outputs;
        weight += layer->stride;
        if (bias) bias += layer->stride;
    }
}

// into: (models, samples, inputs).
void simfed_linear_input_gradient(int wide, const Linear *layer, const float *gradient,
                                  const float *weight, float *into) {
    for (long m = 0; m < layer->models; m++) {
        AT_WIDTH(input_gradient)(*layer, gradient, weight, into);
        into += layer->samples * layer->inputs;
        gradient += layer->samples * layer->outputs;
        weight += layer->stride;
    }
}

// logits: (models, samples, classes), labels: (models, samples) → values: (models,), gradient: as
// logits. 0, or 1 where a label is none of the classes: then nothing was written.
int simfed_cross_entropies(int wide, long models, long samples, long classes, const float *logits,
                           const long long *labels, float *values, float *gradient) {
    for (long i = 0; i < models * samples; i++)
        if (labels[i] < 0 || labels[i] >= classes) return 1;
    for (long m = 0; m < models; m++) {
        values[m] = AT_WIDTH(cross_entropy)(samples, classes, logits, labels, gradient);
        logits += samples * classes;
        gradient += samples * classes;
        labels += samples;
    }
    return 0;
}
}
#endif
