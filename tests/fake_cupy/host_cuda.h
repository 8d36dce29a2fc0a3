// What the probes' kernels need of CUDA, on the host: one thread at a time, and clocks that count its operations.
#define __CUDACC__
#define __global__
#define fmaf counted_fma

struct Index { unsigned x, y, z; };

extern "C" {
Index threadIdx, blockIdx;
double clock_hz = 1e9;             // of the multiprocessor that the block runs on
double cycles_an_operation = 4;
long long operations;
unsigned *reads_of_line;           // how often each line was read, where somebody wants to know
const char *first_line;
}

static inline float counted_fma(float x, float y, float z) { ++operations; return x * y + z; }
static inline long long clock64() { return (long long)(operations * cycles_an_operation); }
static inline unsigned long long globaltimer() {
    return (unsigned long long)(operations * cycles_an_operation / clock_hz * 1e9);
}

template <typename T> static inline T __ldcg(const T *address) {
    if (reads_of_line) ++reads_of_line[((const char *)address - first_line) / 128];
    return *address;
}
