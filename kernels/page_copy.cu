/* SPDX-License-Identifier: Apache-2.0 */
/* Pages from one place of a card's memory to another, a whole list in one launch.
 *
 * The list is cut into units of UNIT_BYTES of one page each; a run of units is one warp's work. A
 * warp reads the indices of its run with one load a lane, so that they come over PCIe in whole
 * lines when the list lies in host memory, and it reads those of its next run before it copies
 * this one. Eight loads of 16 bytes a thread are under way before the first store. */
#include <stdint.h>

#define UNIT_BYTES  4096u
#define LOADS       8
#define WARP        32u

struct pages {
	uint64_t src; /* of page index 0 */
	uint64_t dst;
	const uint32_t *src_index; /* NULL: one page, 0 */
	const uint32_t *dst_index;
	uint64_t count;
	uint64_t src_stride;
	uint64_t dst_stride;
	uint64_t page_bytes;
	uint32_t units;     /* a page */
	uint32_t run_units; /* a warp's at a time; 1..32 */
	/* NULL, or where `ticket` goes at the end: then it is launched as one block. */
	volatile uint64_t *done;
	uint64_t ticket;
};

template <typename T>
__device__ static inline void copy_as(uint64_t dst, uint64_t src, uint64_t bytes,
                                      uint32_t lane)
{
	const T *from = (const T *)src;
	T *to = (T *)dst;
	uint64_t n = bytes / sizeof(T);

	for (uint64_t i = lane; i < n; i += WARP)
		to[i] = from[i];
}

/* Source and destination at the same place within 16 bytes. */
__device__ static inline void copy_vectors(uint64_t dst, uint64_t src, uint64_t bytes,
                                           uint32_t lane)
{
	const uint4 *from = (const uint4 *)src;
	uint4 *to = (uint4 *)dst;
	uint64_t n = bytes / sizeof(uint4);

	if (bytes == UNIT_BYTES) {
		uint4 v[LOADS];

#pragma unroll
		for (int k = 0; k < LOADS; k++)
			v[k] = __ldcs(from + lane + k * WARP);
#pragma unroll
		for (int k = 0; k < LOADS; k++)
			__stcs(to + lane + k * WARP, v[k]);
		return;
	}
	for (uint64_t i = lane; i < n; i += WARP)
		__stcs(to + i, __ldcs(from + i));
}

__device__ static inline void copy_unit(uint64_t dst, uint64_t src, uint64_t bytes, uint32_t lane)
{
	uint64_t head, body;

	if (((dst | src | bytes) & 15) == 0) {
		copy_vectors(dst, src, bytes, lane);
		return;
	}
	if (((dst ^ src) & 15) == 0) {
		head = (16 - (dst & 15)) & 15;
		head = head < bytes ? head : bytes;
		body = (bytes - head) & ~(uint64_t)15;
		copy_as<uint8_t>(dst, src, head, lane);
		copy_vectors(dst + head, src + head, body, lane);
		copy_as<uint8_t>(dst + head + body, src + head + body, bytes - head - body, lane);
		return;
	}
	if (((dst ^ src) & 3) == 0) {
		head = (4 - (dst & 3)) & 3;
		head = head < bytes ? head : bytes;
		body = (bytes - head) & ~(uint64_t)3;
		copy_as<uint8_t>(dst, src, head, lane);
		copy_as<uint32_t>(dst + head, src + head, body, lane);
		copy_as<uint8_t>(dst + head + body, src + head + body, bytes - head - body, lane);
		return;
	}
	copy_as<uint8_t>(dst, src, bytes, lane);
}

extern "C" __global__ void __launch_bounds__(1024) wimm_copy_pages(const struct pages p)
{
	const uint32_t lane = threadIdx.x % WARP;
	const uint64_t warps = (uint64_t)gridDim.x * (blockDim.x / WARP);
	const uint64_t total = p.count * p.units;
	const uint64_t step = warps * p.run_units;
	uint64_t first = ((uint64_t)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP) *
	                 p.run_units;
	uint32_t next_src = 0;
	uint32_t next_dst = 0;

	if (p.src_index != NULL && first < total) {
		uint64_t page = first / p.units + lane;

		if (page < p.count && page <= (first + p.run_units - 1) / p.units) {
			next_src = p.src_index[page];
			next_dst = p.dst_index[page];
		}
	}
	for (; first < total; first += step) {
		const uint32_t src_index = next_src;
		const uint32_t dst_index = next_dst;
		const uint64_t first_page = first / p.units;
		const uint64_t ahead = first + step;
		uint64_t end = first + p.run_units;
		uint64_t page = first_page;
		uint32_t unit = (uint32_t)(first - first_page * p.units);

		end = end < total ? end : total;
		if (p.src_index != NULL && ahead < total) {
			uint64_t ahead_page = ahead / p.units + lane;

			if (ahead_page < p.count &&
			    ahead_page <= (ahead + p.run_units - 1) / p.units) {
				next_src = p.src_index[ahead_page];
				next_dst = p.dst_index[ahead_page];
			}
		}
		for (uint64_t u = first; u < end; u++) {
			const int from = (int)(page - first_page);
			const uint64_t s = __shfl_sync(0xffffffffu, src_index, from);
			const uint64_t d = __shfl_sync(0xffffffffu, dst_index, from);
			const uint64_t off = (uint64_t)unit * UNIT_BYTES;
			const uint64_t left = p.page_bytes - off;

			copy_unit(p.dst + d * p.dst_stride + off, p.src + s * p.src_stride + off,
			          left < UNIT_BYTES ? left : UNIT_BYTES, lane);
			if (++unit == p.units) {
				unit = 0;
				page++;
			}
		}
	}
	if (p.done != NULL) {
		__syncthreads();
		__threadfence_system();
		if (threadIdx.x == 0)
			*p.done = p.ticket;
	}
}
