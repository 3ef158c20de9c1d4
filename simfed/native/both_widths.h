// Includes LOOPS, the loops of a kind of layers, once for each width of vectors: WIDTH numbers, in a
// namespace of its own.

#ifdef X86
#define WIDTH 16
#pragma GCC push_options
#pragma GCC target("avx512f,fma")
namespace sixteen {
#include LOOPS
}
#pragma GCC pop_options
#undef WIDTH
#endif

#if defined(X86) || defined(ARM)
#define WIDTH 8
#ifdef X86
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
namespace eight {
#include LOOPS
}
#ifdef X86
#pragma GCC pop_options
#endif
#undef WIDTH
#endif
