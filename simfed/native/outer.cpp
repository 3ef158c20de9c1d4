// Products of gradients and inputs, which go to the weights as they are made, for outer.py.

#include "vectors.h"

struct Outer {
    long samples, outputs, inputs;
    bool adds;  // factor × the product to what is there; else the product takes its place
    float factor;
};

#define LOOPS "outer_loops.h"
#include "both_widths.h"

extern "C" {

#if defined(X86) || defined(ARM)
// Of each model: outputᵀ (outputs, samples) × x (samples, inputs), added up from the first sample to
// the last by fused multiply-adds. Steps lead from one model's numbers to the next one's.
void simfed_outer_products(int wide, long models, long samples, long outputs, long inputs,
                           const float *outer, long outer_step, const float *x, long x_step,
                           float *into, long into_step, bool adds, float factor) {
    const Outer of = {samples, outputs, inputs, adds, factor};
    for (long m = 0; m < models; m++, outer += outer_step, x += x_step, into += into_step)
        AT_WIDTH(outer_product)(of, outer, x, into);
}
#endif
}
