/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/host/path.h"

#include "base/assert.h"
#include "prov/host/fetch.h"
#include "prov/host/foreign.h"
#include "prov/host/gpu.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
	STAY_BYTES = 1 << 20, /* fetched or copied at a time while a deregistration may wait */
	TURN_BYTES = 4 << 20, /* a turn places about this much */
	TURN_ENTRIES = 512,
};

bool host_rx_report(struct host_path *path, struct prov_emit *emit)
{
	struct host_rx *rx = &path->rx;

	for (; rx->told < rx->done; rx->told++) {
		const struct host_entry *e = &rx->entry[rx->told];
		struct prov_cqe *cqe;
		uint32_t count = 1;

		if (!(e->flags & (HOST_ENTRY_IMM | HOST_ENTRY_PART)))
			continue;
		if (e->flags & HOST_ENTRY_IMM) {
			if (e->kind >= HOST_ENTRY_PLACED && e->parts > 1)
				count = e->parts;
			cqe = prov_emit_last(emit, PROV_IMM, path->context);
			if (cqe && cqe->imm == e->imm && cqe->count <= UINT32_MAX - count) {
				cqe->count += count;
				continue;
			}
		}
		if (prov_emit_full(emit))
			return false;
		cqe = prov_emit_next(emit, e->flags & HOST_ENTRY_IMM ? PROV_IMM : PROV_PART,
		                     path->context);
		cqe->count = count;
		cqe->imm = e->imm;
		if (e->flags & HOST_ENTRY_PART) {
			cqe->op_seq = e->op_seq;
			cqe->parts = e->parts;
		}
	}
	return true;
}

/* Copy out what is there. False: the peer broke the protocol. */
static bool gather(struct host_path *path)
{
	struct host_rx *rx = &path->rx;

	rx->pos += rx->count;
	rx->count = 0;
	rx->done = 0;
	rx->told = 0;
	rx->off = 0;
	host_fetch_batch(path);
	while (rx->count < HOST_BATCH_MAX) {
		struct host_entry *e = &rx->entry[rx->count];
		uint32_t pos = rx->pos + rx->count;
		enum host_slot_look look = host_slot_get(host_slot_at(rx->lane, pos), pos, e);

		if (look == HOST_SLOT_EMPTY) {
			/* When this one is full, the next one is looked at: have it here by then,
			 * out of the cache of a writer that was there a lap ago. */
			__builtin_prefetch(host_slot_at(rx->lane, pos + 1));
			break;
		}
		/* Where the bytes lie is our own count; the entry only has to agree. */
		if (look == HOST_SLOT_BROKEN ||
		    ((e->kind == HOST_ENTRY_SLOT || e->kind == HOST_ENTRY_CARD) &&
		     e->src != rx->bytes) ||
		    (e->kind == HOST_ENTRY_SLOT &&
		     e->len_bytes > HOST_RING_BYTES - (rx->bytes & (HOST_RING_BYTES - 1)))) {
			prov_fail_set(&path->fail, WIMM_E_PROTOCOL, 0,
			              "peer broke the protocol: malformed entry %u in the ring",
			              pos);
			return false;
		}
		if (e->kind == HOST_ENTRY_SLOT || e->kind == HOST_ENTRY_CARD)
			rx->bytes += e->len_bytes;
		rx->count++;
	}
	return true;
}

static uint8_t *target(const struct host_entry *e)
{
	return (uint8_t *)(uintptr_t)e->addr;
}

/* Inside a stay. False: rejected. */
static bool check_range(struct host_path *path, const struct host_entry *e)
{
	const struct prov_regions *regions = &host_dev_of(&path->obj)->regions;
	wimm_status st;

	if (e->len_bytes == 0)
		return true; /* touches nothing, so it needs no key */
	st = prov_regions_check(regions, e->key, e->addr, e->len_bytes);
	if (st == WIMM_OK && e->kind != HOST_ENTRY_PLACED &&
	    host_gpu_any(host_dev_of(&path->obj)) &&
	    host_gpu_device(host_dev_of(&path->obj), e->key) >= 0) {
		prov_fail_set(&path->fail, WIMM_E_PROTOCOL, 0,
		              "peer broke the protocol: bytes of the host for memory of a GPU");
		return false;
	}
	if (st == WIMM_OK)
		return true;
	prov_fail_set(&path->fail, st, 0, "%s", "");
	prov_regions_explain(regions, e->key, e->addr, e->len_bytes, path->fail.text,
	                     sizeof(path->fail.text));
	return false;
}

/* An offer that was taken back counts nothing; its bytes may or may not have come. */
static void forget(struct host_entry *e)
{
	e->flags = 0;
}

static uint32_t pos_of(const struct host_rx *rx, uint32_t i)
{
	return rx->pos + i;
}

static void finish_offer(struct host_rx *rx)
{
	uint32_t pos = pos_of(rx, rx->done);

	if (!host_slot_take(host_slot_at(rx->lane, pos), pos))
		forget(&rx->entry[rx->done]);
	rx->off = 0;
	rx->done++;
}

/* Inside a stay: the run of offers at `done`, as one system call. Bytes; -1: the path is over. */
static ssize_t fetch(struct host_path *path)
{
	struct host_rx *rx = &path->rx;
	struct iovec to[HOST_BATCH_MAX];
	struct iovec from[HOST_BATCH_MAX];
	uint64_t off = rx->off;
	uint64_t total = 0;
	size_t count = 0;
	ssize_t left;
	ssize_t got;
	int code = 0;

	for (uint32_t i = rx->done; i < rx->count && total < STAY_BYTES; i++, off = 0) {
		const struct host_entry *e = &rx->entry[i];
		uint64_t len = e->len_bytes - off;

		if (e->kind != HOST_ENTRY_OFFER ||
		    !host_slot_begin(host_slot_at(rx->lane, pos_of(rx, i)), pos_of(rx, i)))
			break;
		if (!check_range(path, e)) {
			if (count == 0)
				return -1;
			break; /* those before it are sound */
		}
		if (len > STAY_BYTES - total)
			len = STAY_BYTES - total;
		to[count] = (struct iovec){ target(e) + off, len };
		from[count++] = (struct iovec){ (void *)(uintptr_t)(e->src + off), len };
		total += len;
	}
	if (count == 0) { /* taken back */
		forget(&rx->entry[rx->done]);
		rx->off = 0;
		rx->done++;
		return 0;
	}
	got = host_foreign_fetch_many(path->peer_pid, to, from, count, &code);
	if (got < 0) {
		uint32_t pos = pos_of(rx, rx->done);

		if (host_slot_withdrawn(host_slot_at(rx->lane, pos), pos))
			return 0; /* its source may be gone: once more, over it */
		prov_fail_set(&path->fail, WIMM_E_PATH_LOST, code,
		              "cannot fetch %" PRIu64 " bytes at %#" PRIx64 " of process %d: %s",
		              (uint64_t)from[0].iov_len, (uint64_t)(uintptr_t)from[0].iov_base,
		              (int)path->peer_pid, strerror(code));
		return -1;
	}
	for (left = got; rx->done < rx->count;) {
		uint64_t lacks = rx->entry[rx->done].len_bytes - rx->off;

		if (count-- == 0 || (uint64_t)left < lacks) {
			rx->off += (uint64_t)left;
			break;
		}
		left -= (ssize_t)lacks;
		finish_offer(rx);
	}
	return got;
}

/* Inside a stay: entry `done`, which is no offer. False: rejected. */
static bool place_one(struct host_path *path)
{
	struct host_rx *rx = &path->rx;
	const struct host_entry *e = &rx->entry[rx->done];

	if (!check_range(path, e))
		return false;
	if (e->kind == HOST_ENTRY_INLINE && e->len_bytes > 0)
		memcpy(target(e), e->inlined, e->len_bytes);
	if (e->kind == HOST_ENTRY_SLOT && e->len_bytes > 0) {
		memcpy(target(e), rx->lane->bytes + (rx->placed & (HOST_RING_BYTES - 1)),
		       e->len_bytes);
		rx->placed += e->len_bytes;
	}
	rx->done++;
	return true;
}

/* Place some. Bytes, or -1: the path is over. *out_look: of the entry that is waited for. */
static ssize_t place(struct host_path *path, enum host_fetch_look *out_look)
{
	struct prov_regions *regions = &host_dev_of(&path->obj)->regions;
	struct host_rx *rx = &path->rx;
	ssize_t total = 0;

	*out_look = HOST_FETCH_DONE;
	prov_regions_enter(regions);
	while (rx->done < rx->count && total >= 0 && total < STAY_BYTES) {
		const struct host_entry *e = &rx->entry[rx->done];

		if (e->kind == HOST_ENTRY_CARD) {
			*out_look = host_fetch_step(path);
			if (*out_look == HOST_FETCH_OVER)
				total = -1;
			else if (*out_look != HOST_FETCH_DONE)
				break;
		} else if (e->kind == HOST_ENTRY_OFFER) {
			ssize_t got = fetch(path);

			total = got < 0 ? -1 : total + got;
		} else {
			total = place_one(path) ? total + e->len_bytes : -1;
		}
	}
	prov_regions_leave(regions);
	return total;
}

/* Tell the peer how far we are. */
static void acknowledge(struct host_path *path)
{
	struct host_rx *rx = &path->rx;
	uint64_t acked = rx->pos + rx->done;

	if (acked == rx->acked)
		return;
	rx->acked = (uint32_t)acked;
	/* [G] with [F] in host_tx_acks(): we have read before the peer writes over it. */
	atomic_store_explicit(&rx->lane->acked, acked, memory_order_release);
	path->ack_bell_due = true;
}

bool host_rx_step(struct host_path *path, struct prov_emit *emit)
{
	struct host_rx *rx = &path->rx;
	ssize_t bytes = 0;
	uint32_t entries = 0;

	while (bytes < TURN_BYTES && entries < TURN_ENTRIES) {
		enum host_fetch_look look;
		ssize_t got;

		/* Before entries are overwritten their events are out. */
		if (!host_rx_report(path, emit))
			return true;
		if (rx->done == rx->count) {
			bool sound = gather(path);

			if (!sound && rx->count == 0) {
				host_path_reject(path);
				return false;
			}
			if (rx->count == 0)
				return false;
			entries += rx->count;
		}
		got = place(path, &look);
		acknowledge(path);
		if (got < 0) {
			host_path_reject(path);
			return false;
		}
		if (look != HOST_FETCH_DONE) {
			(void)host_rx_report(path, emit);
			return look == HOST_FETCH_COPYING;
		}
		bytes += got;
	}
	(void)host_rx_report(path, emit);
	return true;
}
