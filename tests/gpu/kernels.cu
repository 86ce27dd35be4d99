/* SPDX-License-Identifier: Apache-2.0 */
/* What tests/gpu makes the card do beside the library's own kernels. */
#include <stdint.h>

/* Bump the word by one and wait until the host has answered in the flag, `rounds` times. cycles has
 * room for one figure a round; span_ns for start and end of all. */
extern "C" __global__ void round_trips(volatile uint64_t *word, volatile uint64_t *flag,
                                       uint64_t rounds, uint32_t *cycles, uint64_t *span_ns)
{
	uint64_t t;

	asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
	span_ns[0] = t;
	for (uint64_t i = 1; i <= rounds; i++) {
		long long from = clock64();

		*word = *word + 1;
		__threadfence_system();
		while (*flag < i)
			;
		cycles[i - 1] = (uint32_t)(clock64() - from);
	}
	asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
	span_ns[1] = t;
}

extern "C" __global__ void bump(unsigned long long *word)
{
	atomicAdd_system(word, 1ull);
}

/* Leave when *flag is at least `value`; *out says that the kernel has run to its end. */
extern "C" __global__ void wait_for(volatile uint64_t *flag, uint64_t value, volatile uint64_t *out)
{
	while (*flag < value)
		;
	__threadfence_system();
	*out = value;
}

__device__ static inline uint32_t pattern(uint64_t seed, uint64_t word)
{
	uint64_t x = (word + 1) * 0x9e3779b97f4a7c15ull ^ seed;

	x ^= x >> 29;
	x *= 0xbf58476d1ce4e5b9ull;
	return (uint32_t)(x >> 32);
}

/* Bytes [0, n) of a pattern that starts `first` bytes into the whole. */
extern "C" __global__ void fill(uint8_t *to, uint64_t n, uint64_t seed, uint64_t first)
{
	uint64_t step = (uint64_t)gridDim.x * blockDim.x;

	for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
		uint64_t at = first + i;

		to[i] = (uint8_t)(pattern(seed, at / 4) >> at % 4 * 8);
	}
}

extern "C" __global__ void check(const uint8_t *at_, uint64_t n, uint64_t seed, uint64_t first,
                                 unsigned long long *wrong)
{
	uint64_t step = (uint64_t)gridDim.x * blockDim.x;

	for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
		uint64_t at = first + i;

		if (at_[i] != (uint8_t)(pattern(seed, at / 4) >> at % 4 * 8))
			atomicAdd(wrong, 1ull);
	}
}

/* What a consumer sees that immediates release: for each value from 1 to rounds, wait until *flag
 * has it, count the words that do not carry it, and let the next be written by setting *next. Block
 * i of `blocks` holds the words of values that are i modulo blocks. */
extern "C" __global__ void consume(volatile uint64_t *flag, uint64_t rounds,
                                   const volatile uint64_t *words, uint32_t n, uint32_t blocks,
                                   volatile uint64_t *next, unsigned long long *wrong)
{
	for (uint64_t value = 1; value <= rounds; value++) {
		const volatile uint64_t *at = words + value % blocks * n;

		if (threadIdx.x == 0)
			while (*flag < value)
				;
		__syncthreads();
		__threadfence_system();
		for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
			if (at[i] != value)
				atomicAdd(wrong, 1ull);
		__syncthreads();
		if (threadIdx.x == 0)
			*next = value;
	}
}

/* Words of block b carry first + b. */
extern "C" __global__ void number_blocks(volatile uint64_t *words, uint32_t n, uint64_t first)
{
	for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
		words[(uint64_t)blockIdx.x * n + i] = first + blockIdx.x;
}
