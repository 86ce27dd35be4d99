/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/tcp/path.h"

#include "base/assert.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* How a frame is read: its header block lies in the buffer; its payload is read straight into the
 * targets, up to 64 in one system call, with the start of the next frame behind it into the buffer.
 * What of the payload came with the header block is copied; how much is fetched ahead follows the
 * size of the writes, so that this is a small share of large ones, and small ones come by the
 * bufferful in one system call. */
enum {
	SMALL_WRITE_BYTES = 1024, /* below: cheaper to copy than to place one by one */
	PREFETCH_BYTES = TCP_BLOCK_MAX + TCP_HDR_BYTES, /* a header block and an ACK */
	ACK_WRS = 128,                                  /* at the latest, while more is coming in */
	ACK_BYTES = 4 << 20,
	TURN_BYTES = 2 << 20, /* a turn places about this much */
};

bool tcp_rx_ack_due(const struct tcp_path *path)
{
	const struct tcp_rx *rx = &path->rx;
	uint64_t waiting = rx->placed_total - rx->acked_total;

	if (waiting == 0)
		return false;
	/* The end of a burst, or enough of it. */
	return !(path->conn->can_read || rx->more) || waiting >= ACK_WRS ||
	       rx->unacked_bytes >= ACK_BYTES;
}

bool tcp_rx_report(struct tcp_path *path, struct prov_emit *emit)
{
	struct tcp_rx *rx = &path->rx;

	for (; rx->told < rx->done; rx->told++) {
		const struct tcp_desc *desc = &rx->desc[rx->told];
		struct prov_cqe *cqe;

		if (!(desc->flags & (TCP_DESC_IMM | TCP_DESC_PART)))
			continue;
		if (desc->flags & TCP_DESC_IMM) {
			cqe = prov_emit_last(emit, PROV_IMM, path->context);
			if (cqe && cqe->imm == desc->imm) {
				cqe->count++;
				continue;
			}
		}
		if (prov_emit_full(emit))
			return false;
		cqe = prov_emit_next(emit, desc->flags & TCP_DESC_IMM ? PROV_IMM : PROV_PART,
		                    path->context);
		cqe->count = 1;
		cqe->imm = desc->imm;
		if (desc->flags & TCP_DESC_PART) {
			cqe->op_seq = desc->op_seq;
			cqe->parts = desc->parts;
		}
	}
	return true;
}

/* Inside a stay: check what of the frame still lacks bytes. False: rejected. */
static bool check_ranges(struct tcp_path *path)
{
	const struct prov_regions *regions = &tcp_dev_of(&path->obj)->regions;
	struct tcp_rx *rx = &path->rx;

	rx->removals = prov_regions_removals(regions);
	for (uint32_t i = rx->done; i < rx->count; i++) {
		const struct tcp_desc *desc = &rx->desc[i];
		wimm_status st;

		if (desc->len_bytes == 0)
			continue; /* touches nothing, so it needs no key */
		st = prov_regions_check(regions, desc->key, desc->addr, desc->len_bytes);
		if (st != WIMM_OK) {
			char text[PROV_TEXT_BYTES];

			prov_regions_explain(regions, desc->key, desc->addr, desc->len_bytes, text,
			                     sizeof(text));
			prov_fail_set(&path->fail, st, 0, "%s", text);
			return false;
		}
	}
	return true;
}

/* `bytes` more of the payload are where they belong. */
static void advance(struct tcp_rx *rx, uint64_t bytes)
{
	rx->payload_left -= bytes;
	rx->unacked_bytes += bytes;
	while (rx->done < rx->count) {
		const struct tcp_desc *desc = &rx->desc[rx->done];
		uint64_t lacks = desc->len_bytes - rx->off;

		if (bytes < lacks) {
			rx->off += bytes;
			return;
		}
		bytes -= lacks;
		rx->off = 0;
		rx->done++;
		rx->placed_total += (desc->flags & TCP_DESC_LAST) != 0;
	}
	DASSERT(bytes == 0);
}

static uint8_t *target(const struct tcp_rx *rx, uint32_t i)
{
	uint64_t off = i == rx->done ? rx->off : 0;

	return (uint8_t *)(uintptr_t)(rx->desc[i].addr + off);
}

/* Inside a stay: what came with the header block. */
static void place_buffered(struct tcp_rx *rx)
{
	while (rx->start < rx->end && rx->payload_left > 0) {
		uint64_t len = rx->desc[rx->done].len_bytes - rx->off;

		if (len > rx->end - rx->start)
			len = rx->end - rx->start;
		if (len > 0)
			memcpy(target(rx, rx->done), rx->buf + rx->start, len);
		rx->start += (uint32_t)len;
		advance(rx, len);
	}
}

/* Inside a stay: one system call into the targets, and ahead into the (empty) buffer. */
static ssize_t place_from_socket(struct tcp_path *path)
{
	struct tcp_rx *rx = &path->rx;
	struct iovec iov[TCP_BATCH_MAX + 1];
	uint64_t payload = rx->payload_left;
	size_t count = 0;
	ssize_t got;

	for (uint32_t i = rx->done; i < rx->count; i++) {
		uint64_t len = rx->desc[i].len_bytes - (i == rx->done ? rx->off : 0);

		if (len > 0)
			iov[count++] = (struct iovec){ target(rx, i), len };
	}
	iov[count++] = (struct iovec){ rx->buf, rx->prefetch };
	rx->start = 0;
	rx->end = 0;
	got = tcp_conn_recv(path->conn, iov, count, payload + rx->prefetch);
	if (got <= 0)
		return got;
	if ((uint64_t)got > payload) {
		rx->end = (uint32_t)((uint64_t)got - payload);
		advance(rx, payload);
	} else {
		advance(rx, (uint64_t)got);
	}
	return got;
}

/* Place what can be placed now. > 0: something; 0: not now; -1: connection over; -2: rejected. */
static ssize_t place(struct tcp_path *path)
{
	struct prov_regions *regions = &tcp_dev_of(&path->obj)->regions;
	struct tcp_rx *rx = &path->rx;
	ssize_t got = 0;

	prov_regions_enter(regions);
	if (rx->removals != prov_regions_removals(regions) && !check_ranges(path)) {
		got = -2;
	} else if (rx->start < rx->end) {
		got = rx->end - rx->start;
		place_buffered(rx);
	} else if (path->conn->can_read) {
		got = place_from_socket(path);
	}
	prov_regions_leave(regions);
	return got;
}

/* More into the buffer, behind what it has. */
static ssize_t fill(struct tcp_path *path)
{
	struct tcp_rx *rx = &path->rx;
	struct iovec iov;
	ssize_t got;

	if (!path->conn->can_read)
		return 0;
	if (rx->start > 0) {
		memmove(rx->buf, rx->buf + rx->start, rx->end - rx->start);
		rx->end -= rx->start;
		rx->start = 0;
	}
	iov = (struct iovec){ rx->buf + rx->end, TCP_RX_BYTES - rx->end };
	if (iov.iov_len > rx->prefetch)
		iov.iov_len = rx->prefetch;
	got = tcp_conn_recv(path->conn, &iov, 1, iov.iov_len);
	if (got > 0)
		rx->end += (uint32_t)got;
	return got;
}

static bool reject(struct tcp_path *path)
{
	tcp_path_reject(path);
	return false;
}

static bool broken(struct tcp_path *path, const char *what)
{
	prov_fail_set(&path->fail, WIMM_E_PROTOCOL, 0, "peer broke the protocol: %s", what);
	return reject(path);
}

/* The peer's last word. */
static bool told_error(struct tcp_path *path, const struct tcp_hdr *hdr, const uint8_t *at)
{
	char text[TCP_ERROR_TEXT_MAX + 1];
	wimm_status status = (wimm_status)(int32_t)(uint32_t)hdr->value;

	for (uint32_t i = 0; i < hdr->count; i++)
		text[i] = at[i] >= ' ' && at[i] < 0x7f ? (char)at[i] : '?';
	text[hdr->count] = '\0';
	if (status != WIMM_E_REVOKED && status != WIMM_E_RANGE)
		status = WIMM_E_PROTOCOL;
	prov_fail_set(&path->fail, status, 0, "refused by the peer: %s", text);
	tcp_path_lost(path);
	return false;
}

static bool begin_data(struct tcp_path *path, const struct tcp_hdr *hdr, const uint8_t *at)
{
	struct prov_regions *regions = &tcp_dev_of(&path->obj)->regions;
	struct tcp_rx *rx = &path->rx;
	bool legal;

	if (tcp_descs_decode(hdr, at, rx->desc) != WIMM_OK)
		return broken(path, "malformed descriptors");
	rx->count = hdr->count;
	rx->done = 0;
	rx->told = 0;
	rx->off = 0;
	rx->payload_left = hdr->value;
	rx->prefetch = hdr->value / hdr->count < SMALL_WRITE_BYTES ? TCP_RX_BYTES : PREFETCH_BYTES;
	prov_regions_enter(regions);
	legal = check_ranges(path);
	prov_regions_leave(regions);
	if (!legal) {
		rx->count = 0;
		return reject(path);
	}
	advance(rx, 0); /* those without payload in front are complete */
	return true;
}

enum parsed {
	PARSED_FRAME, /* one frame's header block consumed */
	PARSED_MORE,  /* more bytes are needed */
	PARSED_OVER,  /* the path is over */
};

static enum parsed parse(struct tcp_path *path)
{
	struct tcp_rx *rx = &path->rx;
	const uint8_t *at = rx->buf + rx->start;
	uint32_t have = rx->end - rx->start;
	uint32_t need = TCP_HDR_BYTES;
	struct tcp_hdr hdr;
	bool ok = true;

	if (have < need)
		return PARSED_MORE;
	if (tcp_hdr_decode(at, &hdr) != WIMM_OK)
		return broken(path, "malformed frame header") ? PARSED_FRAME : PARSED_OVER;
	if (hdr.type == TCP_FRAME_DATA)
		need += (uint32_t)hdr.count * TCP_DESC_BYTES;
	else if (hdr.type == TCP_FRAME_ERROR)
		need += hdr.count;
	if (have < need)
		return PARSED_MORE;
	rx->start += need;
	at += TCP_HDR_BYTES;
	if (hdr.type == TCP_FRAME_DATA)
		ok = begin_data(path, &hdr, at);
	else if (hdr.type == TCP_FRAME_ERROR)
		ok = told_error(path, &hdr, at);
	else if (!tcp_tx_acked(path, hdr.value))
		ok = broken(path, "it acknowledges what was not sent");
	return ok ? PARSED_FRAME : PARSED_OVER;
}

/* > 0: go on; 0: nothing more now; -1: connection over; -2: path over, said already. */
static ssize_t rx_once(struct tcp_path *path)
{
	struct tcp_rx *rx = &path->rx;
	ssize_t got;

	if (rx->done < rx->count) {
		got = place(path);
		if (got == -2)
			tcp_path_reject(path);
		return got;
	}
	switch (parse(path)) {
	case PARSED_FRAME:
		return 1;
	case PARSED_MORE:
		return fill(path);
	case PARSED_OVER:
		break;
	}
	return -2;
}

bool tcp_rx_step(struct tcp_path *path, struct prov_emit *emit)
{
	struct tcp_rx *rx = &path->rx;
	ssize_t total = 0;

	rx->more = true; /* unless it runs dry below */
	while (total < TURN_BYTES) {
		ssize_t got;

		/* Before a frame's descriptors are overwritten its events are out. */
		if (!tcp_rx_report(path, emit))
			return true;
		got = rx_once(path);
		if (got == 0) {
			rx->more = false;
			return true;
		}
		if (got == -2)
			return false;
		if (got < 0) {
			tcp_conn_fail_text(path->conn, &path->fail, WIMM_E_PATH_LOST, "path lost");
			tcp_path_lost(path);
			return false;
		}
		total += got;
	}
	(void)tcp_rx_report(path, emit);
	return true;
}
