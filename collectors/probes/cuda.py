"""The probes' own kernels, in CUDA C++."""

from __future__ import annotations

__all__ = ["KERNELS"]

# Only NVIDIA's compiler defines __CUDACC__; AMD's GPUs have other clocks and other ways around a cache.
KERNELS = r"""
#ifdef __CUDACC__
// One warp on each multiprocessor: a chain of additions and multiplications that nothing can shorten, and the time it
// took on both clocks. Their ratio is the multiprocessor's frequency, whoever else runs there.
extern "C" __global__ void clock_ratio(long long steps, long long* cycles, long long* nanoseconds, float* sink) {
    float x = threadIdx.x;
    unsigned long long begun_ns, ended_ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begun_ns) :: "memory");
    long long begun = clock64();
    for (long long step = 0; step < steps; ++step) x = fmaf(x, 0.999f, 0.5f);
    if (x < -1.0f) sink[0] = x;  // never; or the compiler would leave the chain out
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

// One thread that reads where the last read has told it to.
extern "C" __global__ void chase(const unsigned* next, long long hops, unsigned* end) {
    unsigned at = *end;
    for (long long hop = 0; hop < hops; ++hop) at = PAST_THE_NEAREST_CACHE(next + at);
    *end = at;
}

extern "C" __global__ void nothing() {}
"""
