/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GPU_KV_LAYERS_H
#define TESTS_GPU_KV_LAYERS_H

/* A cache sent layer by layer out of a CUDA graph, on one card: what its two processes and its
 * files share. kv_layers.c is the decode side, which leads; kv_layers_prefill.c is the other one;
 * kv_layers_model.c has the layers. */

#include "gpu/gpu.h"

#include <wimm/kv.h>

#include <stdatomic.h>

#define KVL_REQUEST_BYTES (1u << 18)
#define KVL_NAME_BYTES    32
#define KVL_SETTINGS      8

enum {
	KVL_SIDES = 2, /* senders' engines: one for each number of SMs */
	KVL_MIB = 1 << 20,
};

struct kvl_shape {
	uint32_t layers, tokens, chunk; /* tokens that the stand-in computes at a time */
	uint32_t page_tokens, heads, kv_heads, head_dim, hidden, ffn;
};

/* Bytes of one page, and of one layer of the whole prompt. */
static inline uint64_t kvl_page_bytes(const struct kvl_shape *s)
{
	return UINT64_C(4) * s->page_tokens * s->kv_heads * s->head_dim;
}

static inline uint32_t kvl_pages(const struct kvl_shape *s)
{
	return s->tokens / s->page_tokens;
}

static inline uint64_t kvl_layer_bytes(const struct kvl_shape *s)
{
	return kvl_page_bytes(s) * kvl_pages(s);
}

enum kvl_command {
	KVL_RATE,  /* lists of pages, many at a time */
	KVL_ALONE, /* the layers, nothing is sent */
	KVL_SEND,  /* the layers, each sent when it is there */
	KVL_AFTER, /* nothing is computed: the whole cache is there at once */
	KVL_ONE,   /* lists of pages one by one, with a pause before each */
	KVL_END,
};

/* Where the last layer has passed, in its order; then when threads were last woken. */
enum kvl_mark {
	KVL_STORED,
	KVL_SEEN,
	KVL_CALLED,
	KVL_SUBMIT,
	KVL_SUBMITTED,
	KVL_STARTED,
	KVL_ASKED,
	KVL_LAUNCHED,
	KVL_SIGNED,
	KVL_RUNG,
	KVL_COPIED,
	KVL_ENTERED,
	KVL_GOT,
	KVL_COUNTED,
	KVL_CALLBACK,
	KVL_SENDER_WORKER_WOKE,
	KVL_SENDER_CALLER_WOKE,
	KVL_RECEIVER_WORKER_WOKE,
	KVL_RECEIVER_CALLER_WOKE,
	KVL_MARKS,
};

#define KVL_STEP_ROUNDS 1000

struct kvl_steps {
	uint32_t count;
	uint64_t at[KVL_STEP_ROUNDS][KVL_MARKS];
	double card_us[KVL_STEP_ROUNDS];
	uint32_t mhz[KVL_STEP_ROUNDS], watts[KVL_STEP_ROUNDS];
};

/* Memory of both processes. */
struct kvl_share {
	struct kvl_shape shape;
	char cublas[256]; /* library; "": where it is looked for; "none" */
	bool check;       /* products and attention, against slow ones */
	uint32_t sms[KVL_SIDES];
	uint32_t setting_count;
	char setting[KVL_SETTINGS][2][KVL_NAME_BYTES];
	struct wimm_mr_desc desc;       /* of decode's cache */
	_Atomic uint32_t ready;         /* the prefill side is */
	char gemm[64];                  /* what multiplies there */
	double gemm_off, attention_off; /* largest differences where they were checked */

	_Atomic uint32_t asked;
	_Atomic uint32_t answered;
	enum kvl_command command;
	uint32_t side;
	uint64_t seed;
	uint32_t chunks; /* of the prompt's end; all of its pages go with the first where it is 1 */
	uint64_t page_len, page_count, times; /* KVL_RATE, KVL_ONE */
	bool in_a_row;                        /* pages lie in order on both sides */
	uint64_t request_bytes;
	uint8_t request[KVL_REQUEST_BYTES];

	/* Answers. Times are of the clock that both processes have. */
	double rate;
	uint64_t start_ns;    /* before the first graph was launched */
	uint64_t store_ns;    /* the CPU saw the last layer's store */
	uint64_t sent_ns;     /* the sender's report */
	uint64_t word_raw_ns; /* a round of kernel, spinning CPU, kernel: half of it */

	_Atomic uint64_t mark[KVL_MARKS];
	bool events;    /* the card times copies as well */
	double card_us; /* the last one */
	uint32_t card_mhz, card_watts;
};

/* --- kv_layers.c --- */
/* Seconds after which a wait is given up. */
#define KVL_PATIENCE_S 90
/* The order of pages, the same in every process: 0 prefill's, 1 decode's. */
void kvl_page_order(const struct kvl_share *share, int which, uint32_t *out);
void kvl_layout(const struct kvl_shape *s, struct wimm_kv_layout *out);

/* --- kv_layers_prefill.c --- */
void kvl_prefill(struct kvl_share *share);

/* --- kv_layers_times.c --- */
void kvl_times_start(struct kvl_share *share, bool prefill);
/* The engine whose threads are looked at from now on. */
void kvl_times_of(struct wimm_engine *engine);
/* Take the marks of a round that is over. */
void kvl_times_add(struct kvl_steps *steps, uint64_t counted_ns);
void kvl_times_called(void); /* by the receiver's callback */
void kvl_times_print(const char *title, struct kvl_steps *steps, bool alone);
double kvl_card_us(void);
void kvl_card_state(uint32_t *out_mhz, uint32_t *out_watts);

/* --- kv_layers_model.c --- */
struct kvl_model;
/* cache: the pages; index: their order, in the card's memory. */
struct kvl_model *kvl_model_open(const struct kvl_shape *s, cu_ptr cache, cu_ptr index,
                                 const char *cublas, bool check, struct kvl_share *out);
/* What the next graph does: the chunk that begins with first_token, and pages it writes. */
void kvl_model_set(struct kvl_model *m, uint64_t seed, uint64_t first_token, uint64_t write_first,
                   uint64_t write_pages, uint64_t *word);
void kvl_model_layers(struct kvl_model *m);       /* all layers, one bump each */
void kvl_model_write(struct kvl_model *m);        /* their pages alone, one bump by `layers` */
double kvl_gemm_flops(const struct kvl_shape *s); /* of one layer and chunk */
double kvl_attention_flops(const struct kvl_shape *s, uint64_t first_token);

/* A kernel of kv_layers.cu. All parameters are 64 bits long. */
void kvl_launch(const char *kernel, uint64_t blocks, unsigned int threads, uint64_t *values,
                uint32_t count);
#define KVL_LAUNCH(kernel, blocks, threads, ...)                                                   \
	kvl_launch(kernel, blocks, threads, (uint64_t[]){ __VA_ARGS__ },                           \
	           sizeof((uint64_t[]){ __VA_ARGS__ }) / sizeof(uint64_t))

/* --- kv_layers_fake.c --- */
/* Where the driver is the one of tests/fake: its stand-ins for the kernels that matter. Returns
 * whether it is. */
bool kvl_fake_install(void);

#endif
