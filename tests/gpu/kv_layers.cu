/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for the layers of a transformer: real products of matrices and real attention over
 * paged K and V, bf16, tensor cores. What a layer writes into its pages is a pattern, so that the
 * other side can tell for each byte whether it is of this layer, page and round. All parameters are
 * 64 bits long. */
#include <stdint.h>

typedef uint16_t bf16;

struct control {
	uint64_t seed;
	uint64_t first_token; /* of the chunk that is computed */
	uint64_t write_first; /* pages that the layer writes */
	uint64_t write_pages;
	unsigned long long *word; /* of the watcher */
};

extern "C" __global__ void set_control(struct control *to, uint64_t seed, uint64_t first_token,
                                       uint64_t write_first, uint64_t write_pages,
                                       unsigned long long *word)
{
	to->seed = seed;
	to->first_token = first_token;
	to->write_first = write_first;
	to->write_pages = write_pages;
	to->word = word;
}

extern "C" __global__ void bump_by(const struct control *c, uint64_t n)
{
	__threadfence_system();
	atomicAdd_system(c->word, (unsigned long long)n);
}

/* --- bytes --- */

__device__ static inline uint64_t mix(uint64_t x)
{
	x ^= x >> 31;
	x *= 0x9e3779b97f4a7c15ull;
	x ^= x >> 29;
	x *= 0xbf58476d1ce4e5b9ull;
	return x ^ x >> 32;
}

/* Sixteen bytes that are eight numbers from 1/2 to 1, with a sign each. */
__device__ static inline uint4 pattern(uint64_t seed, uint64_t place)
{
	uint64_t a = mix(place * 0xd6e8feb86659fd93ull + seed * 0xa0761d6478bd642full + 1);
	uint64_t b = mix(a + 0xe7037ed1a0b428dbull);
	uint4 v = { (uint32_t)a, (uint32_t)(a >> 32), (uint32_t)b, (uint32_t)(b >> 32) };

	v.x = (v.x & 0x807f807fu) | 0x3f003f00u;
	v.y = (v.y & 0x807f807fu) | 0x3f003f00u;
	v.z = (v.z & 0x807f807fu) | 0x3f003f00u;
	v.w = (v.w & 0x807f807fu) | 0x3f003f00u;
	return v;
}

extern "C" __global__ void write_pages(const struct control *c, uint8_t *cache,
                                       const uint32_t *index, uint64_t layer,
                                       uint64_t layer_bytes, uint64_t page_bytes)
{
	const uint64_t vectors = page_bytes / 16;
	const uint64_t end = (c->write_first + c->write_pages) * vectors;
	const uint64_t step = (uint64_t)gridDim.x * blockDim.x;
	const uint64_t seed = c->seed;

	for (uint64_t i = c->write_first * vectors + (uint64_t)blockIdx.x * blockDim.x +
	                  threadIdx.x;
	     i < end; i += step) {
		const uint64_t page = i / vectors;
		uint4 *to = (uint4 *)(cache + layer * layer_bytes + index[page] * page_bytes);

		to[i - page * vectors] = pattern(seed, layer << 40 | i);
	}
}

extern "C" __global__ void check_pages(const uint8_t *cache, const uint32_t *index, uint64_t pages,
                                       uint64_t layers, uint64_t layer_bytes, uint64_t page_bytes,
                                       uint64_t seed, unsigned long long *wrong)
{
	const uint64_t vectors = page_bytes / 16;
	const uint64_t step = (uint64_t)gridDim.x * blockDim.x;

	for (uint64_t layer = 0; layer < layers; layer++) {
		for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
		     i < pages * vectors; i += step) {
			const uint64_t page = i / vectors;
			const uint4 *at = (const uint4 *)(cache + layer * layer_bytes +
			                                  index[page] * page_bytes);
			const uint4 is = at[i - page * vectors];
			const uint4 want = pattern(seed, layer << 40 | i);

			if (is.x != want.x || is.y != want.y || is.z != want.z || is.w != want.w)
				atomicAdd_system(wrong, 1ull);
		}
	}
}

/* Numbers from -limit to limit; limit_millionths is what it says. */
extern "C" __global__ void fill_numbers(bf16 *to, uint64_t n, uint64_t seed,
                                        uint64_t limit_millionths)
{
	const uint64_t step = (uint64_t)gridDim.x * blockDim.x;
	const float limit = (float)limit_millionths * 1e-6f;

	for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
		const float unit = (float)(uint32_t)mix(i + seed * 0xd6e8feb86659fd93ull) *
		                   (2.0f / 4294967296.0f);

		to[i] = (bf16)(__float_as_uint((unit - 1.0f) * limit) >> 16);
	}
}

__device__ static inline float number(bf16 x)
{
	return __uint_as_float((uint32_t)x << 16);
}

/* --- tensor cores --- */

#define WARP 32

__device__ static inline uint32_t smem_address(const void *p)
{
	return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ static inline void fetch16(void *to, const void *from)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(smem_address(to)), "l"(from)
	             : "memory");
}

__device__ static inline void fetch_commit(void)
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int PENDING>
__device__ static inline void fetch_wait(void)
{
	asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

__device__ static inline void load4(uint32_t *r, const bf16 *at)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
	             : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
	             : "r"(smem_address(at))
	             : "memory");
}

__device__ static inline void load4_turned(uint32_t *r, const bf16 *at)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
	             : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
	             : "r"(smem_address(at))
	             : "memory");
}

/* c += a * b; 16 x 16 by 16 x 8. */
__device__ static inline void product(float *c, const uint32_t *a, const uint32_t *b)
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
	             "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
	             : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ static inline uint32_t pack(float low, float high)
{
	uint32_t r;

	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
	return r;
}

/* --- a product of matrices, for machines without cuBLAS --- */

#define TILE   128
#define DEPTH  32
#define STRIDE (DEPTH + 8) /* so that no two rows of eight share a bank */

/* out[m][n] = a[m][k] * w[n][k]; m and n are multiples of 128, k of 32; a's rows lie a_stride
 * apart. 256 threads, one block a tile of out. */
extern "C" __global__ void __launch_bounds__(256)
	gemm(bf16 *out, const bf16 *a, const bf16 *w, uint64_t m, uint64_t n, uint64_t k,
             uint64_t a_stride)
{
	__shared__ __align__(16) bf16 tile_a[2][TILE * STRIDE];
	__shared__ __align__(16) bf16 tile_w[2][TILE * STRIDE];
	const uint32_t lane = threadIdx.x % WARP;
	const uint32_t warp = threadIdx.x / WARP;
	const uint32_t row0 = warp / 4 * 64;
	const uint32_t col0 = warp % 4 * 32;
	const uint64_t tiles_m = m / TILE;
	const uint64_t at_m = blockIdx.x % tiles_m * TILE;
	const uint64_t at_n = blockIdx.x / tiles_m * TILE;
	const uint64_t steps = k / DEPTH;
	float sum[4][4][4] = {};

	auto fetch = [&](uint64_t step) {
		bf16 *to_a = tile_a[step % 2];
		bf16 *to_w = tile_w[step % 2];

#pragma unroll
		for (uint32_t i = 0; i < 2; i++) {
			const uint32_t piece = threadIdx.x + i * 256;
			const uint32_t row = piece / 4;
			const uint32_t col = piece % 4 * 8;

			fetch16(to_a + row * STRIDE + col,
			        a + (at_m + row) * a_stride + step * DEPTH + col);
			fetch16(to_w + row * STRIDE + col,
			        w + (at_n + row) * k + step * DEPTH + col);
		}
		fetch_commit();
	};

	fetch(0);
	for (uint64_t step = 0; step < steps; step++) {
		const bf16 *from_a = tile_a[step % 2];
		const bf16 *from_w = tile_w[step % 2];

		fetch_wait<0>();
		__syncthreads();
		if (step + 1 < steps)
			fetch(step + 1);
#pragma unroll
		for (uint32_t kk = 0; kk < DEPTH; kk += 16) {
			uint32_t ra[4][4], rw[2][4];

#pragma unroll
			for (uint32_t i = 0; i < 4; i++)
				load4(ra[i], from_a + (row0 + i * 16 + lane % 16) * STRIDE + kk +
				                     lane / 16 * 8);
#pragma unroll
			for (uint32_t j = 0; j < 2; j++)
				load4(rw[j], from_w +
				                     (col0 + j * 16 + lane / 16 * 8 + lane % 8) *
				                             STRIDE +
				                     kk + lane / 8 % 2 * 8);
#pragma unroll
			for (uint32_t i = 0; i < 4; i++)
#pragma unroll
				for (uint32_t j = 0; j < 4; j++)
					product(sum[i][j], ra[i], rw[j / 2] + j % 2 * 2);
		}
	}
#pragma unroll
	for (uint32_t i = 0; i < 4; i++)
#pragma unroll
		for (uint32_t j = 0; j < 4; j++) {
			bf16 *to = out + (at_m + row0 + i * 16 + lane / 4) * n + at_n + col0 +
			           j * 8 + lane % 4 * 2;

			*(uint32_t *)to = pack(sum[i][j][0], sum[i][j][1]);
			*(uint32_t *)(to + 8 * n) = pack(sum[i][j][2], sum[i][j][3]);
		}
}

/* --- attention --- */

#define HEAD    128 /* its size */
#define QUERIES 64  /* of a block; 16 a warp */
#define KEYS    64  /* at a time */
#define PAGE    16  /* tokens */
#define ROW     (HEAD + 8)

struct paged {
	const uint8_t *layer;
	const uint32_t *index;
	uint64_t page_bytes;
	uint64_t head_offset;
};

/* Keys from `first` on of one part into rows of `to`. 128 threads. */
__device__ static inline void fetch_keys(bf16 *to, const struct paged *p, uint64_t part_offset,
                                         uint64_t first)
{
#pragma unroll
	for (uint32_t i = 0; i < KEYS * HEAD / 8 / 128; i++) {
		const uint32_t piece = threadIdx.x + i * 128;
		const uint32_t key = piece / (HEAD / 8);
		const uint32_t col = piece % (HEAD / 8) * 8;
		const uint64_t page = p->index[(first + key) / PAGE];

		fetch16(to + key * ROW + col, p->layer + page * p->page_bytes + p->head_offset +
		                                      part_offset + (key % PAGE * HEAD + col) * 2);
	}
	fetch_commit();
}

__device__ static inline float exp2_fast(float x)
{
	float r;

	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
	return r;
}

/* Queries of the chunk over all keys up to their own: q's rows lie q_stride apart and begin with
 * the heads' queries; K and V lie in pages of 16 tokens, [part][head][token][dimension]. 128
 * threads; blocks: heads * chunk / 64. */
extern "C" __global__ void __launch_bounds__(128)
	attention(const struct control *c, bf16 *out, const bf16 *q, const uint8_t *cache,
                  const uint32_t *index, uint64_t layer, uint64_t layer_bytes, uint64_t page_bytes,
                  uint64_t heads, uint64_t kv_heads, uint64_t q_stride)
{
	__shared__ __align__(16) bf16 key_rows[KEYS * ROW];
	__shared__ __align__(16) bf16 value_rows[KEYS * ROW];
	const uint32_t lane = threadIdx.x % WARP;
	const uint32_t warp = threadIdx.x / WARP;
	const uint64_t head = blockIdx.x % heads;
	/* The last queries have the most keys: they begin. */
	const uint64_t tile = gridDim.x / heads - 1 - blockIdx.x / heads;
	const uint64_t first = c->first_token;
	const uint64_t tiles = (first + tile * QUERIES + QUERIES + KEYS - 1) / KEYS;
	const uint64_t own = first + tile * QUERIES + warp * 16 + lane / 4;
	const uint64_t values = page_bytes / 2;
	const float scale = 0.08838834764f * 1.44269504089f;
	struct paged paged = { cache + layer * layer_bytes, index, page_bytes,
		               head / (heads / kv_heads) * PAGE * HEAD * 2 };
	uint32_t rq[HEAD / 16][4];
	float o[HEAD / 8][4] = {};
	float most[2] = { -1e30f, -1e30f };
	float total[2] = { 0, 0 };

	for (uint32_t i = threadIdx.x; i < QUERIES * HEAD / 8; i += 128) {
		const uint32_t row = i / (HEAD / 8);
		const uint32_t col = i % (HEAD / 8) * 8;

		fetch16(key_rows + row * ROW + col,
		        q + (tile * QUERIES + row) * q_stride + head * HEAD + col);
	}
	fetch_commit();
	fetch_wait<0>();
	__syncthreads();
#pragma unroll
	for (uint32_t i = 0; i < HEAD / 16; i++)
		load4(rq[i], key_rows + (warp * 16 + lane % 16) * ROW + i * 16 + lane / 16 * 8);
	__syncthreads();
	fetch_keys(key_rows, &paged, 0, 0);
	for (uint64_t t = 0; t < tiles; t++) {
		float s[KEYS / 8][4] = {};

		fetch_wait<0>();
		__syncthreads();
		fetch_keys(value_rows, &paged, values, t * KEYS);
#pragma unroll
		for (uint32_t i = 0; i < HEAD / 16; i++)
#pragma unroll
			for (uint32_t j = 0; j < KEYS / 16; j++) {
				uint32_t rk[4];

				load4(rk, key_rows + (j * 16 + lane / 16 * 8 + lane % 8) * ROW +
				                  i * 16 + lane / 8 % 2 * 8);
				product(s[2 * j], rq[i], rk);
				product(s[2 * j + 1], rq[i], rk + 2);
			}
		fetch_wait<0>();
		__syncthreads();
		if (t + 1 < tiles)
			fetch_keys(key_rows, &paged, 0, (t + 1) * KEYS);
#pragma unroll
		for (uint32_t half = 0; half < 2; half++) {
			float now = most[half], sum = 0, less;

#pragma unroll
			for (uint32_t j = 0; j < KEYS / 8; j++)
#pragma unroll
				for (uint32_t e = 0; e < 2; e++) {
					float *x = &s[j][half * 2 + e];

					*x *= scale;
					if (t * KEYS + j * 8 + lane % 4 * 2 + e > own + half * 8)
						*x = -1e30f;
					now = fmaxf(now, *x);
				}
			now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 1));
			now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 2));
			less = exp2_fast(most[half] - now);
			most[half] = now;
#pragma unroll
			for (uint32_t j = 0; j < KEYS / 8; j++)
#pragma unroll
				for (uint32_t e = 0; e < 2; e++) {
					float *x = &s[j][half * 2 + e];

					*x = exp2_fast(*x - now);
					sum += *x;
				}
			total[half] = total[half] * less + sum;
#pragma unroll
			for (uint32_t j = 0; j < HEAD / 8; j++) {
				o[j][half * 2] *= less;
				o[j][half * 2 + 1] *= less;
			}
		}
#pragma unroll
		for (uint32_t i = 0; i < KEYS / 16; i++) {
			const uint32_t rp[4] = {
				pack(s[2 * i][0], s[2 * i][1]),
				pack(s[2 * i][2], s[2 * i][3]),
				pack(s[2 * i + 1][0], s[2 * i + 1][1]),
				pack(s[2 * i + 1][2], s[2 * i + 1][3]),
			};

#pragma unroll
			for (uint32_t j = 0; j < HEAD / 16; j++) {
				uint32_t rv[4];

				load4_turned(rv, value_rows +
				                         (i * 16 + lane / 8 % 2 * 8 + lane % 8) *
				                                 ROW +
				                         j * 16 + lane / 16 * 8);
				product(o[2 * j], rp, rv);
				product(o[2 * j + 1], rp, rv + 2);
			}
		}
	}
#pragma unroll
	for (uint32_t half = 0; half < 2; half++) {
		const uint64_t row = tile * QUERIES + warp * 16 + lane / 4 + half * 8;
		float sum = total[half];

		sum += __shfl_xor_sync(0xffffffffu, sum, 1);
		sum += __shfl_xor_sync(0xffffffffu, sum, 2);
#pragma unroll
		for (uint32_t j = 0; j < HEAD / 8; j++)
			*(uint32_t *)(out + row * heads * HEAD + head * HEAD + j * 8 +
			              lane % 4 * 2) =
				pack(o[j][half * 2] / sum, o[j][half * 2 + 1] / sum);
	}
}

/* --- the same once more, slowly, for a few places: the largest difference, in millionths --- */

__device__ static inline void report(float is, float want, unsigned int *worst)
{
	const float off = fabsf(is - want) * 1e6f;

	/* Also where it is not a number. */
	atomicMax_system(worst, off < 4e9f ? (unsigned int)off : 0xffffffffu);
}

/* One thread a place. */
extern "C" __global__ void check_gemm(const bf16 *out, const bf16 *a, const bf16 *w, uint64_t m,
                                      uint64_t n, uint64_t k, uint64_t a_stride,
                                      unsigned int *worst)
{
	const uint64_t place = mix(blockIdx.x * blockDim.x + threadIdx.x + 1) % (m * n);
	const bf16 *row = a + place / n * a_stride;
	const bf16 *col = w + place % n * k;
	float sum = 0;

	for (uint64_t i = 0; i < k; i++)
		sum += number(row[i]) * number(col[i]);
	report(number(out[place]), sum, worst);
}

/* One block of 128 threads a query and head, a thread a dimension. */
extern "C" __global__ void check_attention(const struct control *c, const bf16 *out, const bf16 *q,
                                           const uint8_t *cache, const uint32_t *index,
                                           uint64_t layer, uint64_t layer_bytes,
                                           uint64_t page_bytes, uint64_t heads, uint64_t kv_heads,
                                           uint64_t q_stride, uint64_t queries,
                                           unsigned int *worst)
{
	__shared__ float parts[HEAD];
	const uint64_t place = mix(blockIdx.x + 1) % (queries * heads);
	const uint64_t query = place / heads, head = place % heads;
	const float own = number(q[query * q_stride + head * HEAD + threadIdx.x]);
	float most = -1e30f, total = 0, sum = 0;

	for (uint64_t key = 0; key <= c->first_token + query; key++) {
		const bf16 *at = (const bf16 *)(cache + layer * layer_bytes +
		                                index[key / PAGE] * page_bytes) +
		                 (head / (heads / kv_heads) * PAGE + key % PAGE) * HEAD +
		                 threadIdx.x;
		float x, now, less, weight;

		parts[threadIdx.x] = own * number(*at);
		__syncthreads();
		for (uint32_t i = HEAD / 2; i > 0; i /= 2) {
			if (threadIdx.x < i)
				parts[threadIdx.x] += parts[threadIdx.x + i];
			__syncthreads();
		}
		x = parts[0] * 0.08838834764f;
		__syncthreads();
		now = fmaxf(most, x);
		less = expf(most - now);
		weight = expf(x - now);
		total = total * less + weight;
		sum = sum * less + weight * number(at[page_bytes / 4]);
		most = now;
	}
	report(number(out[query * heads * HEAD + head * HEAD + threadIdx.x]), sum / total, worst);
}
