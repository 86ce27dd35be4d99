/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/host/fetch.h"

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/log.h"
#include "prov/host/gpu.h"
#include "prov/host/path.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
	LOOK_NS = 1000000, /* between two looks for a fault of the device */
	STOCK = 4,         /* of room for indices, where this side pulls; else one */
	/* All entries of a batch lie in the byte ring, each with its head. */
	INDEX_BYTES = HOST_RING_BYTES - (int)sizeof(struct host_card),
};
#define AHEAD_BYTES (UINT64_C(1) << 30)

enum fetch_state {
	FETCH_NEW = 0,
	FETCH_BEGUN,
	FETCH_PASSED, /* withdrawn before it was begun */
};

struct fetch {
	uint8_t state;
	struct cuda_queue *queue;
	uint64_t ticket; /* 0: there is nothing to copy */
	uint64_t bytes;
};

/* What an entry offers, copied out of the peer's reach and checked. */
struct offer {
	struct host_card card;
	struct cuda_pages pages; /* src: not set */
	uint64_t src_bytes;      /* from index 0 to the end of the page that lies last */
	uint64_t dst_bytes;
};

struct host_fetch {
	struct cuda_queue *queue; /* the device's, of what is under way; NULL: nothing is */
	uint64_t last;            /* newest ticket */
	uint64_t look_ns;
	uint64_t bytes;     /* under way */
	uint32_t next;      /* entries of the batch from here on are not begun */
	bool is_read;       /* what `next` offers: */
	struct offer offer;
	uint32_t *index;    /* pinned; for the indices of a batch. NULL: no list has come */
	uint32_t used;      /* of it */
	struct fetch fetch[HOST_BATCH_MAX];
};

enum start {
	START_OK,
	START_LATER,
	START_ASKING,
	START_OVER,
};

static enum start fail(struct host_path *path, wimm_status status, const char *text)
{
	prov_fail_set(&path->fail, status, 0, "%s", text);
	return START_OVER;
}

static struct host_fetch *fetch_get(struct host_path *path)
{
	if (!path->fetch)
		path->fetch = mem_calloc(1, sizeof(*path->fetch));
	return path->fetch;
}

void host_fetch_batch(struct host_path *path)
{
	struct host_fetch *f = path->fetch;

	if (!f)
		return;
	f->next = 0;
	f->used = 0;
	f->is_read = false;
	memset(f->fetch, 0, sizeof(f->fetch));
}

static bool quiet(const struct host_fetch *f)
{
	return !f->queue || cuda_queue_done(f->queue, f->last);
}

void host_fetch_drain(struct host_path *path)
{
	if (path->fetch && !quiet(path->fetch))
		cuda_queue_drain(path->fetch->queue);
}

void host_fetch_fini(struct host_path *path)
{
	if (!path->fetch)
		return;
	host_fetch_drain(path);
	cuda_host_free(path->fetch->index);
	mem_free(path->fetch);
	path->fetch = NULL;
}

/* --- the device's queues --- */

void host_fetch_quiet(struct host_dev *dev, int device)
{
	struct cuda_queue *q;

	if (device < 0 || device >= MEM_CUDA_MAX_DEVICES)
		return;
	/* [M] with [N] in host_fetch_prepare(). Whatever was asked for in a stay that saw the key
	 * is in it by now: prov_regions_remove() has waited for that stay. */
	q = atomic_load_explicit(&dev->fetches[device], memory_order_acquire);
	if (q)
		cuda_queue_drain(q);
}

void host_fetch_dev_fini(struct host_dev *dev)
{
	for (int i = 0; i < MEM_CUDA_MAX_DEVICES; i++)
		cuda_queue_close(atomic_load_explicit(&dev->fetches[i], memory_order_relaxed));
}

void host_fetch_prepare(struct host_dev *dev, int device)
{
	void *room[STOCK] = { NULL };
	char text[MEM_CUDA_TEXT_BYTES];
	struct cuda_queue *q;

	if (device < 0 || device >= MEM_CUDA_MAX_DEVICES ||
	    atomic_load_explicit(&dev->fetches[device], memory_order_relaxed))
		return;
	if (cuda_queue_open(device, &q, text, sizeof(text)) != WIMM_OK) {
		LOG_WARN("host: GPU %d can fetch nothing: %s", device, text);
		return;
	}
	/* [N] with [M], and with the worker, which sees it before the region's key. */
	atomic_store_explicit(&dev->fetches[device], q, memory_order_release);
	for (int i = 0; i < (dev->gpu_pull ? STOCK : 1); i++)
		room[i] = cuda_host_alloc(INDEX_BYTES);
	for (int i = 0; i < STOCK; i++)
		cuda_host_free(room[i]); /* kept for those who ask next */
}

static struct cuda_queue *queue_of(struct host_path *path, int device)
{
	struct cuda_queue *q = atomic_load_explicit(&host_dev_of(&path->obj)->fetches[device],
	                                            memory_order_acquire);

	if (!q)
		(void)fail(path, WIMM_E_PATH_LOST, "the GPU can fetch nothing: see the log");
	return q;
}

/* --- what is offered --- */

/* False: it passes the end of all addresses. */
static bool span_of(const uint32_t *index, const struct host_card *card, uint64_t stride,
                    uint64_t base, uint64_t *out)
{
	uint64_t max = index ? max_u32(index, card->count) : 0;
	uint64_t end;

	if (__builtin_mul_overflow(max, stride, out) ||
	    __builtin_add_overflow(*out, card->page_bytes, out))
		return false;
	return !__builtin_add_overflow(base, *out, &end);
}

/* Room for both lists of an entry. */
static uint32_t *index_of(struct host_fetch *f, uint64_t count)
{
	uint32_t *index;

	if (!f->index)
		f->index = cuda_host_alloc(INDEX_BYTES);
	if (!f->index || 8 * count > INDEX_BYTES - f->used)
		return NULL;
	index = f->index + f->used / sizeof(uint32_t);
	f->used += (uint32_t)(8 * count);
	return index;
}

static enum start read_offer(struct host_path *path, uint32_t i, struct offer *out)
{
	const struct host_entry *e = &path->rx.entry[i];
	struct host_card *c = &out->card;
	uint32_t *index = NULL;

	if (e->len_bytes < sizeof(*c))
		return fail(path, WIMM_E_PROTOCOL, "peer broke the protocol: a short offer");
	host_bytes_get(path->rx.lane, e->src, c, sizeof(*c));
	if (c->indexed > 1 || c->count == 0 || c->count > HOST_CARD_PAGES ||
	    (c->indexed == 0 && c->count != 1) ||
	    e->len_bytes != sizeof(*c) + (c->indexed != 0 ? 8 * c->count : 0))
		return fail(path, WIMM_E_PROTOCOL, "peer broke the protocol: a malformed offer");
	if (c->indexed != 0) {
		index = index_of(path->fetch, c->count);
		if (!index)
			return fail(path, WIMM_E_NOMEM, "no pinned memory for indices of pages");
		host_bytes_get(path->rx.lane, e->src + sizeof(*c), index, 8 * c->count);
	}
	if (!span_of(index, c, c->src_stride, c->src, &out->src_bytes) ||
	    !span_of(index ? index + c->count : NULL, c, c->dst_stride, e->addr,
	             &out->dst_bytes))
		return fail(path, WIMM_E_RANGE, "what the peer offers passes the end of memory");
	out->pages = (struct cuda_pages){ .dst = e->addr,
		                          .src_index = index,
		                          .dst_index = index ? index + c->count : NULL,
		                          .count = c->count,
		                          .src_stride = c->src_stride,
		                          .dst_stride = c->dst_stride,
		                          .page_bytes = c->page_bytes };
	return START_OK;
}

/* Inside a stay. */
static enum start check_target(struct host_path *path, const struct host_entry *e,
                               const struct offer *o, int *out_device)
{
	const struct host_dev *dev = host_dev_of(&path->obj);
	wimm_status st = prov_regions_check(&dev->regions, e->key, e->addr, o->dst_bytes);

	if (st != WIMM_OK) {
		prov_fail_set(&path->fail, st, 0, "%s", "");
		prov_regions_explain(&dev->regions, e->key, e->addr, o->dst_bytes, path->fail.text,
		                     sizeof(path->fail.text));
		return START_OVER;
	}
	*out_device = host_gpu_device(dev, e->key);
	if (*out_device < 0)
		return fail(path, WIMM_E_PROTOCOL,
		            "peer broke the protocol: memory of a GPU for a region of the host");
	return START_OK;
}

/* Where the source is here. */
static enum start find_source(struct host_path *path, struct offer *o, int device)
{
	char text[MEM_CUDA_TEXT_BYTES];
	const struct host_map *map;
	bool refused;

	map = host_maps_source(path, o->card.src_key, o->card.src, o->src_bytes, &refused);
	if (!map)
		return refused ? fail(path, WIMM_E_UNSUPPORTED,
		                      "the peer's GPU memory cannot be mapped by this process")
		               : START_ASKING;
	if (map->imported && map->cuda.device != device) {
		(void)snprintf(text, sizeof(text),
		               "the peer's source is on GPU %d and the region on GPU %d of this "
		               "process: one card copies within itself only",
		               map->cuda.device, device);
		return fail(path, WIMM_E_UNSUPPORTED, text);
	}
	o->pages.src = (uint64_t)(uintptr_t)map->base + (o->card.src - map->addr);
	return START_OK;
}

/* --- copying --- */

/* Those that are signed together. */
struct run {
	struct cuda_queue *queue; /* NULL before the first copy */
	bool batch;
};

static enum start ask(struct host_path *path, uint32_t i, struct run *run, struct cuda_queue *q)
{
	struct host_fetch *f = path->fetch;
	const struct cuda_pages *p = &f->offer.pages;
	uint64_t bytes = p->count * p->page_bytes;
	wimm_status st;

	if (!run->queue && run->batch)
		cuda_queue_begin(q);
	run->queue = q;
	f->queue = q;
	st = p->src_index ? cuda_queue_pages(q, p, &f->last)
	                  : cuda_queue_copy_device(q, p->dst, p->src, p->page_bytes, &f->last);
	if (st != WIMM_OK)
		return fail(path, WIMM_E_PATH_LOST, cuda_queue_error(q));
	f->fetch[i].queue = q;
	f->fetch[i].ticket = run->batch ? UINT64_MAX : f->last;
	f->fetch[i].bytes = bytes;
	f->bytes += bytes;
	return START_OK;
}

/* The offer at `next`. */
static enum start start(struct host_path *path, struct run *run)
{
	struct host_fetch *f = path->fetch;
	struct offer *o = &f->offer;
	uint32_t i = f->next;
	enum start st = f->is_read ? START_OK : read_offer(path, i, o);
	struct cuda_queue *q = NULL;
	int device;

	f->is_read = st == START_OK;
	if (st == START_OK && o->card.page_bytes != 0) {
		st = check_target(path, &path->rx.entry[i], o, &device);
		if (st == START_OK)
			st = find_source(path, o, device);
		if (st != START_OK)
			return st;
		q = queue_of(path, device);
		if (!q)
			return START_OVER;
		if ((run->queue && run->queue != q) || (f->queue != q && !quiet(f)) ||
		    (f->bytes != 0 && f->bytes + o->card.count * o->card.page_bytes > AHEAD_BYTES))
			return START_LATER;
	}
	if (st != START_OK)
		return st;
	f->is_read = false;
	f->fetch[i] = (struct fetch){ .state = FETCH_BEGUN };
	if (host_slot_begin(host_slot_at(path->rx.lane, path->rx.pos + i), path->rx.pos + i))
		return q ? ask(path, i, run, q) : START_OK;
	f->fetch[i].state = FETCH_PASSED;
	return START_OK;
}

static bool is_offer(const struct host_rx *rx, uint32_t i)
{
	return i < rx->count && rx->entry[i].kind == HOST_ENTRY_CARD;
}

/* The run of offers from `next` on; a single one's kernel says itself when it has ended. */
static enum start start_run(struct host_path *path)
{
	struct host_fetch *f = path->fetch;
	struct run run = { .batch = is_offer(&path->rx, f->next + 1) };
	uint32_t first = f->next;
	enum start st = START_OK;

	while (st == START_OK && is_offer(&path->rx, f->next)) {
		st = start(path, &run);
		f->next += st == START_OK;
	}
	if (!run.queue || !run.batch)
		return st;
	if (cuda_queue_end(run.queue, &f->last) != WIMM_OK) {
		cuda_queue_drain(run.queue); /* of those that no ticket stands for */
		return fail(path, WIMM_E_PATH_LOST, cuda_queue_error(run.queue));
	}
	for (uint32_t i = first; i < f->next; i++)
		if (f->fetch[i].ticket == UINT64_MAX)
			f->fetch[i].ticket = f->last;
	return st;
}

static bool is_there(const struct fetch *one)
{
	return one->ticket == 0 || cuda_queue_done(one->queue, one->ticket);
}

static bool faulty(struct host_path *path)
{
	struct host_fetch *f = path->fetch;
	uint64_t now_ns = path->obj.loop->now_ns;

	if (now_ns - f->look_ns < LOOK_NS)
		return false;
	f->look_ns = now_ns;
	if (cuda_queue_check(f->queue) == WIMM_OK)
		return false;
	(void)fail(path, WIMM_E_PATH_LOST, cuda_queue_error(f->queue));
	return true;
}

/* An offer that was taken back counts nothing; its bytes may or may not have come. */
static void finish(struct host_path *path)
{
	struct host_rx *rx = &path->rx;
	struct fetch *one = &path->fetch->fetch[rx->done];
	uint32_t pos = rx->pos + rx->done;

	path->fetch->bytes -= one->bytes;
	if (one->state == FETCH_PASSED || !host_slot_take(host_slot_at(rx->lane, pos), pos))
		rx->entry[rx->done].flags = 0;
	rx->placed += rx->entry[rx->done].len_bytes;
	rx->done++;
}

enum host_fetch_look host_fetch_step(struct host_path *path)
{
	struct host_fetch *f = fetch_get(path);
	struct host_rx *rx = &path->rx;
	enum start st = START_OK;

	if (!f) {
		(void)fail(path, WIMM_E_NOMEM, "no memory to fetch memory of a GPU");
		return HOST_FETCH_OVER;
	}
	if (f->next < rx->done)
		f->next = rx->done; /* entries that are no offers lie between */
	if (path->ended && f->next == rx->done)
		return HOST_FETCH_ASKING; /* whose process is gone: not begun any more */
	if (!path->ended)
		st = start_run(path);
	if (f->next == rx->done) /* those before a broken one are sound */
		return st == START_OVER     ? HOST_FETCH_OVER
		       : st == START_ASKING ? HOST_FETCH_ASKING
		                            : HOST_FETCH_COPYING;
	if (!is_there(&f->fetch[rx->done]))
		return faulty(path) ? HOST_FETCH_OVER : HOST_FETCH_COPYING;
	finish(path);
	return HOST_FETCH_DONE;
}
