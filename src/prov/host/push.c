/* SPDX-License-Identifier: Apache-2.0 */
/* Writing into the peer's ordinary memory by the kernel. Used where the setting host_way asks
 * for it: a writer that stops in the middle cannot be fenced off, only waited for. */
#include "prov/host/path.h"

#include "prov/host/foreign.h"

#include <errno.h>
#include <string.h>

enum { CALL_BYTES = 1 << 20 }; /* written with one system call */

struct run {
	size_t count;
	uint64_t bytes;
	struct iovec from[HOST_BATCH_MAX];
	struct iovec to[HOST_BATCH_MAX];
};

static uint32_t room(const struct host_tx *tx)
{
	return HOST_RING_ENTRIES - (tx->published - tx->acked);
}

/* Requests at `send` that go this way, the first from where it is. */
static void gather(struct host_path *path, struct run *run)
{
	struct host_tx *tx = &path->tx;
	uint64_t off = tx->send_off + tx->piece_off;
	uint64_t end = tx->send_off + host_tx_piece_bytes(tx, host_tx_req(tx, tx->send));

	run->count = 0;
	run->bytes = 0;
	for (uint32_t pos = tx->send; pos != tx->tail; pos++, off = 0) {
		struct host_req *req = host_tx_req(tx, pos);
		uint64_t len;

		if (pos != tx->send)
			end = req->wr.len_bytes;
		len = end - off;
		if (run->count == HOST_BATCH_MAX || run->count == room(tx) ||
		    run->bytes >= CALL_BYTES || req->state == HOST_REQ_DROPPED ||
		    !host_tx_by(path, req, HOST_BY_STORE))
			return;
		if (!host_maps_find(path, req->wr.remote_key, req->wr.remote_addr + off, len)) {
			req->by = HOST_BY_NONE; /* taken back since it was decided */
			return;
		}
		if (len > CALL_BYTES - run->bytes)
			len = CALL_BYTES - run->bytes;
		run->from[run->count] =
			(struct iovec){ (void *)(uintptr_t)((const uint8_t *)req->wr.src + off),
			                len };
		run->to[run->count++] =
			(struct iovec){ (void *)(uintptr_t)(req->wr.remote_addr + off), len };
		run->bytes += len;
		if (off + len < req->wr.len_bytes)
			return;
	}
}

/* `bytes` of the run are where they belong. */
static void advance(struct host_path *path, uint64_t bytes)
{
	struct host_tx *tx = &path->tx;

	while (bytes > 0) {
		struct host_req *req = host_tx_req(tx, tx->send);
		struct host_entry e = { .kind = HOST_ENTRY_PLACED,
			                .len_bytes = host_tx_piece_bytes(tx, req) };
		uint64_t lacks = e.len_bytes - tx->piece_off;

		if (bytes < lacks) {
			tx->piece_off += bytes;
			return;
		}
		bytes -= lacks;
		host_tx_publish(path, req, &e);
	}
}

bool host_push_step(struct host_path *path)
{
	struct host_tx *tx = &path->tx;
	struct host_req *first = host_tx_req(tx, tx->send);
	ssize_t got = -1;
	struct run run;
	int code = 0;
	bool valid;

	if (tx->budget == 0) {
		prov_obj_ready(&path->obj);
		return false;
	}
	gather(path, &run);
	if (run.count == 0)
		return true; /* decided anew at the next look */
	if (host_maps_enter(&path->maps, tx->lane))
		got = host_foreign_store_many(path->peer_pid, path->pidfd, run.to, run.from,
		                              run.count, &code);
	valid = host_maps_leave(&path->maps, tx->lane);
	if (got >= 0 && valid) {
		advance(path, (uint64_t)got);
		tx->budget -= (uint64_t)got < tx->budget ? (uint64_t)got : tx->budget;
		return true;
	}
	if (got < 0 && code != 0) {
		path->ways.tx_store = false;
		path->ways.tx_store_errno = code;
	}
	/* Begin the piece again by another way. */
	host_maps_flush(&path->maps);
	tx->piece_off = 0;
	first->by = HOST_BY_NONE;
	return true;
}
