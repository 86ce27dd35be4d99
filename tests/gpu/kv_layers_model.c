/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in for a transformer's layers: its memory, its products and its graphs. The products
 * are cuBLAS's where that can be loaded, as an engine's are, else those of kv_layers.cu. One set of
 * weights serves every layer; it is many times larger than the card's cache. */
#include "gpu/kv_layers.h"

#include "base/alloc.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

const void *gpu_layers_image(void);

enum {
	PARAMS_MAX = 16,
	CUBLAS_OP_N = 0,
	CUBLAS_OP_T = 1,
	CUBLAS_BF16 = 14,
	CUBLAS_COMPUTE_F32 = 68,
	CUBLAS_ANY = -1,
	WORKSPACE = 32 * KVL_MIB,
	PLACES = 4096, /* that are computed again */
	FILL_BLOCKS = 1056,
	WRITE_BLOCKS = 528,
};

/* The part of its interface that is used here, as it is fixed for good. */
struct cublas {
	int (*create)(void **);
	int (*set_stream)(void *, struct cu_stream *);
	int (*set_workspace)(void *, void *, size_t);
	int (*gemm)(void *, int, int, int, int, int, const void *, const void *, int, int,
	            const void *, int, int, const void *, void *, int, int, int, int);
	void *handle; /* NULL: not here */
};

struct kvl_model {
	struct kvl_shape s;
	struct cublas blas;
	cu_ptr cache, index, control;
	cu_ptr w_qkv, w_out, w_up, w_down;
	cu_ptr x, qkv, attention, y, up, z;
	void *layers, *write; /* graphs */
};

static struct cu_module *module;

void kvl_launch(const char *kernel, uint64_t blocks, unsigned int threads, uint64_t *values,
                uint32_t count)
{
	void *params[PARAMS_MAX];
	struct cu_function *f;

	MUST(count > PARAMS_MAX);
	for (uint32_t i = 0; i < count; i++)
		params[i] = &values[i];
	if (!module)
		MUST(gpu.lib->module_load(&module, gpu_layers_image()));
	MUST(gpu.lib->module_function(&f, module, kernel));
	MUST(gpu.lib->launch(f, (unsigned int)blocks, 1, 1, threads, 1, 1, 0, gpu.stream, params,
	                     NULL));
}

/* --- cuBLAS --- */

static bool blas_find(void *lib, const char *name, void *out)
{
	void *symbol = dlsym(lib, name);

	memcpy(out, &symbol, sizeof(symbol));
	return symbol != NULL;
}

static void *blas_load(const char *wanted)
{
	static const char *const places[] = {
		"libcublas.so.13",
		"libcublas.so.12",
		"/usr/local/cuda/lib64/libcublas.so.13",
		"/usr/local/cuda/lib64/libcublas.so",
		"/opt/torch/.venv/lib/python3.12/site-packages/nvidia/cu13/lib/libcublas.so.13",
		"/opt/torch/.venv/lib/python3.12/site-packages/nvidia/cublas/lib/libcublas.so.13",
		"/opt/torch/.venv/lib/python3.12/site-packages/nvidia/cublas/lib/libcublas.so.12",
	};
	void *lib = NULL;

	if (strcmp(wanted, "none") == 0)
		return NULL;
	if (wanted[0] != '\0')
		return dlopen(wanted, RTLD_NOW | RTLD_LOCAL);
	for (size_t i = 0; !lib && i < sizeof(places) / sizeof(places[0]); i++)
		lib = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
	return lib;
}

static void blas_open(struct cublas *b, const char *wanted, struct kvl_share *out)
{
	void *lib = blas_load(wanted);
	void *handle;

	(void)snprintf(out->gemm, sizeof(out->gemm), "own kernels");
	if (!lib) {
		if (strcmp(wanted, "none") != 0)
			printf("# no cuBLAS: %s\n", dlerror());
		return;
	}
	if (!blas_find(lib, "cublasCreate_v2", &b->create) ||
	    !blas_find(lib, "cublasSetStream_v2", &b->set_stream) ||
	    !blas_find(lib, "cublasSetWorkspace_v2", &b->set_workspace) ||
	    !blas_find(lib, "cublasGemmEx", &b->gemm) || b->create(&handle) != 0) {
		printf("# cuBLAS is here but does not start\n");
		return;
	}
	MUST(b->set_stream(handle, gpu.stream));
	MUST(b->set_workspace(handle, (void *)(uintptr_t)gpu_alloc(WORKSPACE), WORKSPACE));
	b->handle = handle;
	(void)snprintf(out->gemm, sizeof(out->gemm), "cuBLAS");
}

/* out[tokens][n] = a[tokens][k] * w[n][k]; a's rows lie a_stride apart. */
static void multiply(const struct kvl_model *m, cu_ptr out, cu_ptr a, cu_ptr w, uint64_t n,
                     uint64_t k, uint64_t a_stride)
{
	const uint64_t tokens = m->s.chunk;
	const float one = 1, none = 0;

	if (!m->blas.handle) {
		KVL_LAUNCH("gemm", tokens / 128 * (n / 128), 256, out, a, w, tokens, n, k,
		           a_stride);
		return;
	}
	/* Its matrices are column by column: ours, turned. */
	MUST(m->blas.gemm(m->blas.handle, CUBLAS_OP_T, CUBLAS_OP_N, (int)n, (int)tokens, (int)k,
	                  &one, (void *)(uintptr_t)w, CUBLAS_BF16, (int)k, (void *)(uintptr_t)a,
	                  CUBLAS_BF16, (int)a_stride, &none, (void *)(uintptr_t)out, CUBLAS_BF16,
	                  (int)n, CUBLAS_COMPUTE_F32, CUBLAS_ANY));
}

/* --- a layer --- */

static uint64_t qkv_columns(const struct kvl_shape *s)
{
	return ((uint64_t)s->heads + 2 * s->kv_heads) * s->head_dim;
}

double kvl_gemm_flops(const struct kvl_shape *s)
{
	double a_token = (double)s->hidden * (double)qkv_columns(s) +
	                 (double)s->hidden * s->heads * s->head_dim + 3.0 * s->hidden * s->ffn;

	return 2 * a_token * s->chunk;
}

/* Two products a key that a query may see, two operations a number. */
double kvl_attention_flops(const struct kvl_shape *s, uint64_t first_token)
{
	double pairs =
		(double)s->chunk * (double)first_token + (double)s->chunk * (s->chunk + 1.0) / 2;

	return 4.0 * s->head_dim * s->heads * pairs;
}

static void write_layer(const struct kvl_model *m, uint64_t layer)
{
	KVL_LAUNCH("write_pages", WRITE_BLOCKS, 512, m->control, m->cache, m->index, layer,
	           kvl_layer_bytes(&m->s), kvl_page_bytes(&m->s));
}

static void attend(const struct kvl_model *m, uint64_t layer)
{
	const struct kvl_shape *s = &m->s;

	KVL_LAUNCH("attention", (uint64_t)s->heads * (s->chunk / 64), 128, m->control, m->attention,
	           m->qkv, m->cache, m->index, layer, kvl_layer_bytes(s), kvl_page_bytes(s),
	           s->heads, s->kv_heads, qkv_columns(s));
}

static void compute_layer(const struct kvl_model *m, uint64_t layer)
{
	const struct kvl_shape *s = &m->s;
	const uint64_t width = (uint64_t)s->heads * s->head_dim;

	multiply(m, m->qkv, m->x, m->w_qkv, qkv_columns(s), s->hidden, s->hidden);
	write_layer(m, layer);
	attend(m, layer);
	multiply(m, m->y, m->attention, m->w_out, s->hidden, width, width);
	multiply(m, m->up, m->y, m->w_up, UINT64_C(2) * s->ffn, s->hidden, s->hidden);
	multiply(m, m->z, m->up, m->w_down, s->hidden, s->ffn, UINT64_C(2) * s->ffn);
}

/* --- memory --- */

static cu_ptr numbers(uint64_t rows, uint64_t columns, uint64_t seed, double limit)
{
	cu_ptr at = gpu_alloc(rows * columns * 2);

	KVL_LAUNCH("fill_numbers", FILL_BLOCKS, 512, at, rows * columns, seed,
	           (uint64_t)(limit * 1e6));
	return at;
}

/* Rows whose numbers have a variance of 1 / columns, so that products stay as large as what goes
 * in. */
static cu_ptr weights(uint64_t rows, uint64_t columns, uint64_t seed)
{
	return numbers(rows, columns, seed, sqrt(3.0 / (double)columns));
}

static void make_memory(struct kvl_model *m)
{
	const struct kvl_shape *s = &m->s;
	const uint64_t width = (uint64_t)s->heads * s->head_dim;

	m->w_qkv = weights(qkv_columns(s), s->hidden, 1);
	m->w_out = weights(s->hidden, width, 2);
	m->w_up = weights(UINT64_C(2) * s->ffn, s->hidden, 3);
	m->w_down = weights(s->hidden, s->ffn, 4);
	m->x = numbers(s->chunk, s->hidden, 5, 1);
	m->qkv = gpu_alloc(s->chunk * qkv_columns(s) * 2);
	m->attention = gpu_alloc(s->chunk * width * 2);
	m->y = gpu_alloc(UINT64_C(2) * s->chunk * s->hidden);
	m->up = gpu_alloc(UINT64_C(4) * s->chunk * s->ffn);
	m->z = gpu_alloc(UINT64_C(2) * s->chunk * s->hidden);
	m->control = gpu_alloc(64);
}

/* --- whether it computes what it says --- */

static double worst_of(uint32_t *worst)
{
	double value;

	MUST(gpu.lib->stream_sync(gpu.stream));
	value = *(volatile uint32_t *)worst;
	*worst = 0;
	return value / 1e6;
}

static void check(struct kvl_model *m, struct kvl_share *out)
{
	const struct kvl_shape *s = &m->s;
	uint32_t *worst = cuda_host_alloc(64);
	uint64_t at = (uint64_t)(uintptr_t)worst;
	uint64_t word = (uint64_t)(uintptr_t)(worst + 8);

	MUST(worst == NULL);
	memset(worst, 0, 64);
	kvl_model_set(m, 1, s->tokens - s->chunk, 0, kvl_pages(s), (uint64_t *)(uintptr_t)word);
	compute_layer(m, 1);
	KVL_LAUNCH("check_gemm", PLACES / 128, 128, m->qkv, m->x, m->w_qkv, s->chunk,
	           qkv_columns(s), s->hidden, s->hidden, at);
	KVL_LAUNCH("check_gemm", PLACES / 128, 128, m->z, m->up, m->w_down, s->chunk, s->hidden,
	           s->ffn, UINT64_C(2) * s->ffn, at);
	out->gemm_off = worst_of(worst);
	KVL_LAUNCH("check_attention", 264, 128, m->control, m->attention, m->qkv, m->cache,
	           m->index, 1, kvl_layer_bytes(s), kvl_page_bytes(s), s->heads, s->kv_heads,
	           qkv_columns(s), s->chunk, at);
	out->attention_off = worst_of(worst);
	cuda_host_free(worst);
}

/* --- graphs --- */

static void *end_graph(void)
{
	void *graph, *exec;

	MUST(gpu.captured(gpu.stream, &graph));
	MUST(gpu.instantiate(&exec, graph, 0));
	return exec;
}

struct kvl_model *kvl_model_open(const struct kvl_shape *s, cu_ptr cache, cu_ptr index,
                                 const char *cublas, bool is_checked, struct kvl_share *out)
{
	struct kvl_model *m = mem_calloc(1, sizeof(*m));

	MUST(m == NULL);
	m->s = *s;
	m->cache = cache;
	m->index = index;
	blas_open(&m->blas, cublas, out);
	make_memory(m);
	if (is_checked)
		check(m, out);
	/* Once outside a graph: what is loaded at the first use is here then. */
	kvl_model_set(m, 1, 0, 0, kvl_pages(s), NULL);
	compute_layer(m, 0);
	MUST(gpu.lib->stream_sync(gpu.stream));
	MUST(gpu.capture(gpu.stream, CU_CAPTURE_RELAXED));
	for (uint64_t layer = 0; layer < s->layers; layer++) {
		compute_layer(m, layer);
		KVL_LAUNCH("bump_by", 1, 1, m->control, 1);
	}
	m->layers = end_graph();
	MUST(gpu.capture(gpu.stream, CU_CAPTURE_RELAXED));
	for (uint64_t layer = 0; layer < s->layers; layer++)
		write_layer(m, layer);
	KVL_LAUNCH("bump_by", 1, 1, m->control, s->layers);
	m->write = end_graph();
	return m;
}

void kvl_model_set(struct kvl_model *m, uint64_t seed, uint64_t first_token, uint64_t write_first,
                   uint64_t write_pages, uint64_t *word)
{
	KVL_LAUNCH("set_control", 1, 1, m->control, seed, first_token, write_first, write_pages,
	           (uint64_t)(uintptr_t)word);
}

void kvl_model_layers(struct kvl_model *m)
{
	MUST(gpu.graph_launch(m->layers, gpu.stream));
}

void kvl_model_write(struct kvl_model *m)
{
	MUST(gpu.graph_launch(m->write, gpu.stream));
}
