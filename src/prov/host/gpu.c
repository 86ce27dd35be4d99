/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/host/gpu.h"

#include "base/alloc.h"
#include "prov/host/fetch.h"
#include "prov/host/path.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
	AHEAD_REQS = 256,            /* under way at once */
	LOOK_NS = 1000000,           /* between two looks for a fault of the device */
	LATELY_NS = 1000000000,      /* a path that copied then may do so again */
};
#define AHEAD_BYTES (UINT64_C(1) << 30)

struct host_gpu_req {
	uint64_t ticket;
	uint64_t bytes;
	bool is_list;
	struct cuda_pages list; /* dst: where index 0 is in its owner */
	uint64_t list_bytes;    /* from there to the end of the page that lies last */
};

struct host_gpu {
	struct cuda_queue *queue; /* NULL until the first copy */
	int device;
	uint32_t next;   /* requests before it, from `send` on, are under way or have ended */
	uint64_t last;   /* newest ticket */
	uint64_t bytes;  /* under way, about */
	bool is_unsigned; /* copies were asked for that no ticket stands for yet */
	bool inside;     /* `writing` is odd: see share.h */
	uint64_t look_ns;
	uint64_t start_ns; /* of the last copy */
	struct host_gpu_req req[HOST_POST_DEPTH];
};

/* --- regions --- */

wimm_status host_gpu_reg(struct host_dev *dev, const void *addr, uint64_t len_bytes, uint64_t key,
                         struct prov_error *error)
{
	struct mem_cuda_range range;
	uint8_t *devices = atomic_load_explicit(&dev->gpu, memory_order_relaxed);
	bool is_cuda;
	wimm_status st = mem_cuda_describe(addr, len_bytes, &is_cuda, &range, error->text,
	                                   sizeof(error->text));

	if (st != WIMM_OK || !is_cuda)
		return st;
	if (PROV_KEY_SLOT(key) >= dev->regions.count)
		return WIMM_OK; /* refused by the table of regions */
	if (!devices) {
		devices = mem_calloc(dev->regions.count, 1);
		if (!devices)
			return WIMM_E_NOMEM;
	}
	host_fetch_prepare(dev, range.device);
	devices[PROV_KEY_SLOT(key)] = (uint8_t)(range.device + 1);
	/* [K] with [L] in host_gpu_any(): the device is there before the first region's key is. */
	atomic_store_explicit(&dev->gpu, devices, memory_order_release);
	return WIMM_OK;
}

void host_gpu_dereg(struct host_dev *dev, uint64_t key)
{
	uint8_t *devices = atomic_load_explicit(&dev->gpu, memory_order_relaxed);

	if (devices)
		devices[PROV_KEY_SLOT(key)] = 0;
}

void host_gpu_regs_fini(struct host_dev *dev)
{
	mem_free(atomic_load_explicit(&dev->gpu, memory_order_relaxed));
}

int host_gpu_device(const struct host_dev *dev, uint64_t key)
{
	const uint8_t *devices = atomic_load_explicit(&dev->gpu, memory_order_acquire);

	if (!devices || PROV_KEY_SLOT(key) >= dev->regions.count)
		return -1;
	return devices[PROV_KEY_SLOT(key)] - 1;
}

/* --- sending --- */

static struct host_gpu_req *gpu_req(struct host_gpu *g, uint32_t pos)
{
	return &g->req[pos & (HOST_POST_DEPTH - 1)];
}

static struct host_gpu *gpu_get(struct host_path *path)
{
	if (!path->gpu) {
		path->gpu = mem_calloc(1, sizeof(*path->gpu));
		if (path->gpu)
			path->gpu->device = -1;
	}
	return path->gpu;
}

static bool fail(struct host_path *path, wimm_status status, const char *text)
{
	prov_fail_set(&path->fail, status, 0, "%s", text);
	host_path_reject(path);
	return false;
}

static bool open_queue(struct host_path *path, int device)
{
	struct host_gpu *g = path->gpu;
	char text[MEM_CUDA_TEXT_BYTES];

	if (g->queue && g->device == device)
		return true;
	host_gpu_drain(path);
	cuda_queue_close(g->queue);
	g->queue = NULL;
	g->last = 0;
	/* Closing has waited for them, and the next queue counts anew. */
	for (uint32_t pos = path->tx.send; pos != g->next; pos++)
		gpu_req(g, pos)->ticket = 0;
	if (cuda_queue_open(device, &g->queue, text, sizeof(text)) != WIMM_OK)
		return fail(path, WIMM_E_PATH_LOST, text);
	g->device = device;
	return true;
}

static bool quiet(const struct host_gpu *g)
{
	return !g->queue || (!g->is_unsigned && cuda_queue_done(g->queue, g->last));
}

static bool gate_moved(const struct host_path *path)
{
	return atomic_load_explicit(&path->tx.lane->gate, memory_order_seq_cst) != path->maps.gate;
}

static void leave(struct host_path *path)
{
	if (path->gpu->inside)
		(void)host_maps_leave(&path->maps, path->tx.lane);
	path->gpu->inside = false;
	path->gpu->bytes = 0;
}

void host_gpu_drain(struct host_path *path)
{
	struct host_gpu *g = path->gpu;

	if (!g)
		return;
	if (!quiet(g))
		cuda_queue_drain(g->queue);
	g->is_unsigned = false;
	leave(path);
}

void host_gpu_fini(struct host_path *path)
{
	if (!path->gpu)
		return;
	if (path->gpu->queue)
		cuda_queue_close(path->gpu->queue);
	mem_free(path->gpu);
	path->gpu = NULL;
}

/* Ask the card for one request's copy. */
static wimm_status ask(struct host_path *path, const struct host_req *req, struct host_gpu_req *r,
                       const struct host_map *map)
{
	struct host_gpu *g = path->gpu;
	uint64_t base = (uint64_t)(uintptr_t)map->base;

	if (r->is_list) {
		struct cuda_pages p = r->list;

		p.dst = base + (r->list.dst - map->addr);
		return cuda_queue_pages(g->queue, &p, &r->ticket);
	}
	return cuda_queue_copy_device(g->queue, base + (req->wr.remote_addr - map->addr),
	                              (uint64_t)(uintptr_t)req->wr.src, req->wr.len_bytes,
	                              &r->ticket);
}

/* Where it goes. NULL: not known yet, or the path is over. */
static const struct host_map *target(struct host_path *path, const struct host_req *req,
                                     const struct host_gpu_req *r)
{
	uint64_t addr = r->is_list ? r->list.dst : req->wr.remote_addr;
	uint64_t bytes = r->is_list ? r->list_bytes : req->wr.len_bytes;
	bool refused;
	const struct host_map *map =
		host_maps_find_gpu(path, req->wr.remote_key, addr, bytes, &refused);

	if (!map && refused && !path->pull_cards)
		(void)fail(path, WIMM_E_UNSUPPORTED,
		           "the peer's GPU memory cannot be mapped by this process");
	return map;
}

/* The core takes another way to a card that is not the source's, if its descriptor is right. */
static bool same_card(struct host_path *path, const struct host_map *map, int device)
{
	char text[MEM_CUDA_TEXT_BYTES];

	if (!map->imported || map->cuda.device == device)
		return true;
	(void)snprintf(text, sizeof(text),
	               "the source is on GPU %d and the peer's region on GPU %d of this process: "
	               "one card copies within itself only",
	               device, map->cuda.device);
	return fail(path, WIMM_E_UNSUPPORTED, text);
}

/* A single request when it has no list of its own. */
static void prepare(struct host_gpu *g, uint32_t pos, const struct host_req *req)
{
	struct host_gpu_req *r = gpu_req(g, pos);

	r->is_list = req->wr.reserved != 0;
	r->ticket = 0;
	r->bytes = r->is_list ? r->list.count * r->list.page_bytes : req->wr.len_bytes;
}

/* Start one. False: not now. */
static bool start(struct host_path *path, uint32_t pos)
{
	struct host_req *req = host_tx_req(&path->tx, pos);
	struct host_gpu *g = path->gpu;
	int device = host_gpu_device(host_dev_of(&path->obj), req->wr.local_key);
	const struct host_map *map;

	prepare(g, pos, req);
	map = target(path, req, gpu_req(g, pos));
	if (!map || !same_card(path, map, device) || !open_queue(path, device))
		return false;
	if (!g->inside) {
		g->inside = true;
		if (!host_maps_enter(&path->maps, path->tx.lane)) {
			leave(path);
			host_maps_flush(&path->maps);
			prov_obj_ready(&path->obj); /* ask anew */
			return false;
		}
		/* It wakes up while this card copies: that takes longer than all that is done
		 * here. */
		host_path_ring(path);
	}
	g->is_unsigned = true;
	g->start_ns = path->obj.loop->now_ns;
	if (ask(path, req, gpu_req(g, pos), map) != WIMM_OK)
		return fail(path, WIMM_E_PATH_LOST, cuda_queue_error(g->queue));
	g->bytes += gpu_req(g, pos)->bytes;
	return true;
}

/* Sign what was started together. */
static bool sign(struct host_path *path, uint32_t first)
{
	struct host_gpu *g = path->gpu;
	uint64_t ticket;

	if (g->next == first) {
		cuda_queue_end_empty(g->queue);
		return true;
	}
	if (cuda_queue_end(g->queue, &ticket) != WIMM_OK)
		return fail(path, WIMM_E_PATH_LOST, cuda_queue_error(g->queue));
	g->last = ticket;
	g->is_unsigned = false;
	for (uint32_t pos = first; pos != g->next; pos++)
		gpu_req(g, pos)->ticket = ticket;
	return true;
}

static bool room_ahead(const struct host_path *path)
{
	return path->gpu->next - path->tx.send < AHEAD_REQS && path->gpu->bytes < AHEAD_BYTES;
}

/* Start what follows. False: the path is over. */
static bool start_ahead(struct host_path *path)
{
	struct host_tx *tx = &path->tx;
	struct host_gpu *g = path->gpu;
	uint32_t first = g->next;
	bool batch = tx->tail - g->next > 1 && g->queue;

	if (g->next == tx->tail || path->pull_cards || !room_ahead(path) ||
	    (g->inside && gate_moved(path)))
		return true;
	if (batch)
		cuda_queue_begin(g->queue);
	while (g->next != tx->tail && room_ahead(path)) {
		struct host_req *req = host_tx_req(tx, g->next);

		if (req->state != HOST_REQ_DROPPED) {
			if (!host_tx_by(path, req, HOST_BY_GPU) || !start(path, g->next))
				break;
			if (!batch) {
				g->last = gpu_req(g, g->next)->ticket;
				g->is_unsigned = false;
			}
		}
		g->next++;
		if (!batch && g->queue && g->next != tx->tail)
			break; /* the rest together, at the next turn */
	}
	if (path->failed)
		return false;
	return !batch || sign(path, first);
}

/* Where the next request goes. */
static void touch_next(struct host_path *path)
{
	struct host_tx *tx = &path->tx;

	__builtin_prefetch(host_tx_req(tx, tx->tail), 1);
	__builtin_prefetch((const char *)host_tx_req(tx, tx->tail) + 64, 1);
	__builtin_prefetch(gpu_req(path->gpu, tx->tail), 1);
	__builtin_prefetch((const char *)gpu_req(path->gpu, tx->tail) + 64, 1);
	__builtin_prefetch(host_slot_at(tx->lane, tx->published), 1);
}

void host_gpu_warm(struct host_path *path)
{
	struct host_gpu *g = path->gpu;

	if (g && g->queue && !path->failed && quiet(g) &&
	    path->obj.loop->now_ns - g->start_ns < LATELY_NS)
		cuda_queue_warm(g->queue);
	if (g && path->up && !path->failed)
		touch_next(path);
}

/* What was given has been taken back: begin again with what is not published. */
static bool start_over(struct host_path *path)
{
	host_gpu_drain(path);
	host_maps_flush(&path->maps);
	path->gpu->next = path->tx.send;
	prov_obj_ready(&path->obj);
	return false;
}

static bool look_for_fault(struct host_path *path)
{
	struct host_gpu *g = path->gpu;
	uint64_t now_ns = path->obj.loop->now_ns;

	if (now_ns - g->look_ns < LOOK_NS)
		return false;
	g->look_ns = now_ns;
	if (cuda_queue_check(g->queue) == WIMM_OK)
		return false;
	return !fail(path, WIMM_E_PATH_LOST, cuda_queue_error(g->queue));
}

static void publish(struct host_path *path, struct host_req *req)
{
	struct host_entry e = { .kind = HOST_ENTRY_PLACED,
		                .len_bytes = host_tx_piece_bytes(&path->tx, req) };

	host_tx_publish(path, req, &e);
}

bool host_gpu_step(struct host_path *path)
{
	struct host_gpu *g = gpu_get(path);
	struct host_tx *tx = &path->tx;

	if (!g)
		return fail(path, WIMM_E_NOMEM, "no memory to copy GPU memory");
	if (g->next - tx->send > tx->tail - tx->send)
		g->next = tx->send;
	if (!start_ahead(path))
		return false; /* over */
	if (g->next == tx->send && path->pull_cards) { /* so the peer has answered */
		host_tx_req(tx, tx->send)->by = HOST_BY_NONE;
		return true;
	}
	if (g->next == tx->send)
		return false; /* no answer yet */
	if (!cuda_queue_done(g->queue, gpu_req(g, tx->send)->ticket)) {
		if (!look_for_fault(path))
			prov_obj_ready(&path->obj);
		return false;
	}
	/* The copy came before this look: while the gate stands, its bytes are there for good. */
	if (gate_moved(path))
		return start_over(path);
	g->bytes -= gpu_req(g, tx->send)->bytes <= g->bytes ? gpu_req(g, tx->send)->bytes : 0;
	publish(path, host_tx_req(tx, tx->send));
	if (quiet(g))
		leave(path);
	return true;
}

/* --- offering --- */

enum { LIST_MIN_PAGES = 512 }; /* do not cut finer because the byte ring is nearly full */

bool host_gpu_offer(struct host_path *path, struct host_req *req)
{
	struct host_gpu *g = gpu_get(path);
	struct host_tx *tx = &path->tx;
	uint64_t room = HOST_RING_BYTES - (tx->bytes_tail - tx->bytes_head);
	struct host_entry e = { .kind = HOST_ENTRY_CARD, .src = tx->bytes_tail };
	struct host_card card = { .src_key = req->wr.local_key, .count = 1 };
	const struct cuda_pages *list;
	uint64_t left = 1, n = 1;

	if (!g)
		return fail(path, WIMM_E_NOMEM, "no memory to offer GPU memory");
	list = &gpu_req(g, tx->send)->list;
	if (req->wr.reserved != 0) {
		left = list->count - tx->send_off; /* counts pages here */
		n = left < HOST_CARD_PAGES ? left : HOST_CARD_PAGES;
		if (room < sizeof(card) + 8 * n)
			n = room < sizeof(card) ? 0 : (room - sizeof(card)) / 8;
		if (n < left && n < LIST_MIN_PAGES)
			return false;
		card.src = list->src;
		card.page_bytes = list->page_bytes;
		card.count = n;
		card.src_stride = list->src_stride;
		card.dst_stride = list->dst_stride;
		card.indexed = 1;
		host_bytes_put(tx->lane, e.src + sizeof(card), list->src_index + tx->send_off,
		               4 * n);
		host_bytes_put(tx->lane, e.src + sizeof(card) + 4 * n,
		               list->dst_index + tx->send_off, 4 * n);
		e.addr = list->dst;
	} else {
		if (room < sizeof(card))
			return false;
		card.src = (uint64_t)(uintptr_t)req->wr.src;
		card.page_bytes = req->wr.len_bytes;
		e.addr = req->wr.remote_addr;
	}
	host_bytes_put(tx->lane, e.src, &card, sizeof(card));
	e.len_bytes = (uint32_t)(sizeof(card) + (card.indexed != 0 ? 8 * n : 0));
	tx->bytes_tail += e.len_bytes;
	path->offers_cards = true;
	host_tx_put(path, req, &e, n == left);
	if (n < left)
		tx->send_off += n;
	return true;
}

uint32_t host_op_post_pages(struct prov_path *path_, const struct prov_pages *pages)
{
	struct host_path *path = (struct host_path *)path_;
	struct host_gpu *g = path->up && !path->failed && !path->ended ? gpu_get(path) : NULL;
	struct host_tx *tx = &path->tx;
	struct host_req *req = host_tx_req(tx, tx->tail);

	if (!g || tx->tail - tx->head == HOST_POST_DEPTH)
		return 0;
	req->wr = pages->wr;
	req->wr.reserved = pages->units;
	/* Stands for all of them where the receiver looks whether the region is still there. */
	req->wr.remote_addr += (uint64_t)pages->dst_index[0] * pages->dst_stride;
	req->wr.parts = pages->units;
	gpu_req(g, tx->tail)->list = (struct cuda_pages){
		.src = (uint64_t)(uintptr_t)pages->wr.src,
		.dst = pages->wr.remote_addr,
		.src_index = pages->src_index,
		.dst_index = pages->dst_index,
		.count = pages->count,
		.src_stride = pages->src_stride,
		.dst_stride = pages->dst_stride,
		.page_bytes = pages->wr.len_bytes,
	};
	gpu_req(g, tx->tail)->list_bytes = pages->dst_bytes;
	host_tx_queue(path, req);
	return 1;
}

void host_op_forget(struct prov_path *path_, uint64_t remote_key)
{
	struct host_path *path = (struct host_path *)path_;

	if ((path->gpu || path->fetch) && path->area)
		host_maps_forget(path, remote_key);
}
