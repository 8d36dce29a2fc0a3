"""CUDA C++ source of the probes' own kernels."""

from __future__ import annotations

# Only NVIDIA's compiler defines __CUDACC__; AMD GPUs have other clocks and other instructions to bypass a cache.
KERNELS = r"""
#ifdef __CUDACC__
// One warp per multiprocessor runs a chain of dependent additions and multiplications, and times it on both clocks.
// Their ratio is the multiprocessor's frequency, whatever else runs there.
extern "C" __global__ void clock_ratio(long long steps, long long* cycles, long long* nanoseconds, float* sink) {
    float x = threadIdx.x;
    unsigned long long begun_ns, ended_ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begun_ns) :: "memory");
    long long begun = clock64();
    for (long long step = 0; step < steps; ++step) x = fmaf(x, 0.999f, 0.5f);
    if (x < -1.0f) sink[0] = x;  // never true; keeps the compiler from removing the chain
    long long ended = clock64();
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ended_ns) :: "memory");
    if (threadIdx.x == 0) {
        cycles[blockIdx.x] = ended - begun;
        nanoseconds[blockIdx.x] = ended_ns - begun_ns;
    }
}
#define PAST_THE_NEAREST_CACHE(address) __ldcg(address)
#else
#define PAST_THE_NEAREST_CACHE(address) __builtin_nontemporal_load(address)
#endif

// One thread; each read gives the address of the next one.
extern "C" __global__ void chase(const unsigned* next, long long hops, unsigned* end) {
    unsigned at = *end;
    for (long long hop = 0; hop < hops; ++hop) at = PAST_THE_NEAREST_CACHE(next + at);
    *end = at;
}

extern "C" __global__ void nothing() {}
"""
