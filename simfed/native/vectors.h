// What the compiled layers share: the widths of vectors for which their loops are compiled, sixteen
// numbers and eight, and how a processor is asked which it has.

#define PRAGMA(text) _Pragma(#text)
#define UNROLLED PRAGMA(GCC unroll 16)

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define X86
#elif defined(__aarch64__) && defined(__GNUC__)
#define ARM
#endif

static const int LANES = 16;

// The next of the fewest groups of at most `most` into which `left` can be divided fairly.
static inline long fair_share(long left, long most) {
    const long groups = (left + most - 1) / most;
    return (left + groups - 1) / groups;
}

#ifdef X86
#define AT_WIDTH(loops) (wide == 16 ? sixteen::loops : eight::loops)
#else
#define AT_WIDTH(loops) (eight::loops)
#endif
