// What is asked of the compiled layers as a whole; convpool.cpp has them.

#include "vectors.h"

extern "C" {

// Of what the library's functions take and do; the number that simfed/native/__init__.py asks for.
int simfed_interface() { return 3; }

// How many numbers this processor's vectors hold: 16, 8, or 0 where these loops are of no use.
int simfed_widest() {
#if defined(X86)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) return 16;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 8 : 0;
#elif defined(ARM)
    return 8;
#else
    return 0;
#endif
}
}
