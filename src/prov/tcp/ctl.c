/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/tcp/ctl.h"

#include "base/alloc.h"

#include <endian.h>
#include <string.h>

enum {
	LEN_BYTES = 4,
	FLUSH_MS = 1000,
	RX_BYTES = TCP_CTL_MAX_BYTES + LEN_BYTES + 65536,
	TX_BYTES = 8u << 20, /* more than four of the longest; a power of two */
};

struct tcp_ctl {
	struct prov_obj obj;
	struct tcp_conn *conn; /* NULL: lost */
	void *context;
	bool announce; /* PROV_CTL_NEW is due */
	bool failed;   /* `fail` says how */
	bool down_reported;
	bool draining; /* closed by the core: no more events */
	struct prov_fail fail;
	/* Received and not handed out: rx[rx_start..rx_end). Untouched pages cost nothing. */
	uint8_t *rx;
	uint32_t rx_start;
	uint32_t rx_end;
	/* To be sent: a ring, free-running positions. */
	uint8_t *tx;
	uint64_t tx_head;
	uint64_t tx_tail;
};

static struct tcp_ctl *ctl_new(struct tcp_dev *dev)
{
	struct tcp_ctl *ctl = mem_calloc(1, sizeof(*ctl));

	if (!ctl)
		return NULL;
	ctl->rx = mem_alloc(RX_BYTES);
	ctl->tx = mem_alloc(TX_BYTES);
	prov_obj_init(&ctl->obj, &dev->loop, TCP_OBJ_CTL, &dev->ctls);
	if (ctl->rx && ctl->tx)
		return ctl;
	list_remove(&ctl->obj.all);
	tcp_ctl_free(&ctl->obj);
	return NULL;
}

void tcp_ctl_free(struct prov_obj *obj)
{
	struct tcp_ctl *ctl = LIST_ENTRY(obj, struct tcp_ctl, obj);

	mem_free(ctl->rx);
	mem_free(ctl->tx);
	mem_free(ctl);
}

void tcp_ctl_drop(struct prov_obj *obj)
{
	struct tcp_ctl *ctl = LIST_ENTRY(obj, struct tcp_ctl, obj);

	if (ctl->conn)
		tcp_conn_close(ctl->conn);
	ctl->conn = NULL;
	prov_obj_kill(obj);
}

bool tcp_ctl_draining(const struct prov_obj *obj)
{
	return LIST_ENTRY(obj, struct tcp_ctl, obj)->draining;
}

bool tcp_ctl_accepted(struct tcp_conn *conn)
{
	struct tcp_ctl *ctl = ctl_new(tcp_dev_of(&conn->obj));

	if (!ctl)
		return false;
	ctl->conn = conn;
	ctl->announce = true;
	conn->owner = &ctl->obj;
	prov_obj_ready(&ctl->obj);
	return true;
}

struct prov_ctl *tcp_op_ctl_open(struct prov_dev *dev_, const struct prov_addr *to, void *context)
{
	struct tcp_dev *dev = (struct tcp_dev *)dev_;
	union tcp_sockaddr sa;
	struct tcp_ctl *ctl = ctl_new(dev);
	int code = 0;

	if (!ctl)
		return NULL;
	ctl->context = context;
	if (tcp_addr_decode(to, &sa) != WIMM_OK) {
		ctl->failed = true;
		prov_fail_set(&ctl->fail, WIMM_E_PEER_LOST, 0, "malformed tcp address of %u bytes",
		             to->len_bytes);
		prov_obj_ready(&ctl->obj);
		return (struct prov_ctl *)ctl;
	}
	ctl->conn = tcp_conn_dial(dev, &sa, TCP_KIND_CTL, NULL, &ctl->obj, &code);
	if (!ctl->conn) {
		prov_obj_kill(&ctl->obj);
		return NULL;
	}
	prov_obj_timer(&ctl->obj, dev->limits.hello_timeout_ms);
	return (struct prov_ctl *)ctl;
}

void tcp_op_ctl_set_context(struct prov_ctl *ctl, void *context)
{
	((struct tcp_ctl *)ctl)->context = context;
}

static void tx_copy(struct tcp_ctl *ctl, const void *data, uint32_t len_bytes)
{
	uint32_t at = (uint32_t)(ctl->tx_tail & (TX_BYTES - 1));
	uint32_t first = len_bytes < TX_BYTES - at ? len_bytes : TX_BYTES - at;

	if (len_bytes == 0)
		return;
	memcpy(ctl->tx + at, data, first);
	memcpy(ctl->tx, (const uint8_t *)data + first, len_bytes - first);
	ctl->tx_tail += len_bytes;
}

wimm_status tcp_op_ctl_send(struct prov_ctl *ctl_, const void *data, uint32_t len_bytes)
{
	struct tcp_ctl *ctl = (struct tcp_ctl *)ctl_;
	uint32_t le = htole32(len_bytes);

	if (ctl->failed || ctl->draining)
		return WIMM_E_PEER_LOST;
	if (len_bytes > TCP_CTL_MAX_BYTES)
		return WIMM_E_TOO_LONG;
	if (TX_BYTES - (ctl->tx_tail - ctl->tx_head) < (uint64_t)LEN_BYTES + len_bytes)
		return WIMM_AGAIN;
	tx_copy(ctl, &le, LEN_BYTES);
	tx_copy(ctl, data, len_bytes);
	prov_obj_ready(&ctl->obj);
	return WIMM_OK;
}

static void ctl_lost(struct tcp_ctl *ctl)
{
	ctl->failed = true;
	if (ctl->conn)
		tcp_conn_close(ctl->conn);
	ctl->conn = NULL;
	prov_obj_timer_off(&ctl->obj);
}

static void tx_step(struct tcp_ctl *ctl)
{
	while (ctl->tx_head != ctl->tx_tail && ctl->conn->can_write) {
		uint32_t at = (uint32_t)(ctl->tx_head & (TX_BYTES - 1));
		uint64_t left = ctl->tx_tail - ctl->tx_head;
		uint64_t first = left < TX_BYTES - at ? left : TX_BYTES - at;
		struct iovec iov[2] = { { ctl->tx + at, first }, { ctl->tx, left - first } };

		ctl->tx_head += tcp_conn_send(ctl->conn, iov, left > first ? 2 : 1);
	}
	/* Start over at the front, so that small messages do not wander through all pages. */
	if (ctl->tx_head == ctl->tx_tail)
		ctl->tx_head = ctl->tx_tail = 0;
}

/* Hand out what is complete. False: the peer broke the protocol. */
static bool rx_emit(struct tcp_ctl *ctl, struct prov_emit *emit)
{
	while (ctl->rx_end - ctl->rx_start >= LEN_BYTES && !prov_emit_full(emit)) {
		struct prov_cqe *cqe;
		uint32_t len;

		memcpy(&len, ctl->rx + ctl->rx_start, LEN_BYTES);
		len = le32toh(len);
		if (len > TCP_CTL_MAX_BYTES) {
			prov_fail_set(&ctl->fail, WIMM_E_PROTOCOL, 0,
			             "peer announced a message of %u bytes, %u is the limit", len,
			             TCP_CTL_MAX_BYTES);
			return false;
		}
		if (ctl->rx_end - ctl->rx_start - LEN_BYTES < len)
			return true;
		cqe = prov_emit_next(emit, PROV_CTL_MSG, ctl->context);
		cqe->ctl = (struct prov_ctl *)ctl;
		cqe->data = ctl->rx + ctl->rx_start + LEN_BYTES;
		cqe->len_bytes = len;
		ctl->rx_start += LEN_BYTES + len;
	}
	return true;
}

/* Whether a whole message waits for room in the caller's array. */
static bool rx_pending(const struct tcp_ctl *ctl)
{
	uint32_t len;

	if (ctl->rx_end - ctl->rx_start < LEN_BYTES)
		return false;
	memcpy(&len, ctl->rx + ctl->rx_start, LEN_BYTES);
	return ctl->rx_end - ctl->rx_start - LEN_BYTES >= le32toh(len);
}

/* One read a turn, before anything is handed out: what was handed out stays where it is until the
 * next turn. False: lost. */
static bool rx_step(struct tcp_ctl *ctl, struct prov_emit *emit)
{
	if (!rx_pending(ctl) && ctl->conn->can_read) {
		struct iovec iov;
		ssize_t got;

		memmove(ctl->rx, ctl->rx + ctl->rx_start, ctl->rx_end - ctl->rx_start);
		ctl->rx_end -= ctl->rx_start;
		ctl->rx_start = 0;
		iov = (struct iovec){ ctl->rx + ctl->rx_end, RX_BYTES - ctl->rx_end };
		got = tcp_conn_recv(ctl->conn, &iov, 1, iov.iov_len);
		if (got < 0) {
			tcp_conn_fail_text(ctl->conn, &ctl->fail, WIMM_E_PEER_LOST,
			                   "connection lost");
			return false;
		}
		ctl->rx_end += (uint32_t)got;
	}
	return rx_emit(ctl, emit);
}

/* False: not open (yet, or any more). */
static bool dial_step(struct tcp_ctl *ctl)
{
	wimm_status st;

	if (ctl->conn->state == TCP_CONN_OPEN)
		return true;
	st = tcp_conn_dial_step(ctl->conn, &ctl->fail);
	if (st == WIMM_OK) {
		if (!ctl->draining)
			prov_obj_timer_off(&ctl->obj);
		return true;
	}
	if (st == WIMM_AGAIN && ctl->obj.expired) {
		ctl->conn->error = 0;
		prov_fail_set(&ctl->fail, WIMM_E_TIMEOUT, 0, "no answer within %u ms",
		             tcp_dev_of(&ctl->obj)->limits.hello_timeout_ms);
		st = WIMM_E_TIMEOUT;
	}
	if (st != WIMM_AGAIN)
		ctl_lost(ctl);
	return false;
}

/* Closed by the core: only what was sent before still matters. */
static bool drain_step(struct tcp_ctl *ctl)
{
	struct tcp_conn *conn;

	if (ctl->conn && dial_step(ctl)) {
		tx_step(ctl);
		if (ctl->conn->error != 0)
			ctl_lost(ctl);
	}
	conn = ctl->conn;
	if (conn && ctl->tx_head != ctl->tx_tail && !ctl->obj.expired)
		return false;
	if (conn && conn->state == TCP_CONN_OPEN && ctl->tx_head == ctl->tx_tail) {
		ctl->conn = NULL;
		tcp_conn_linger(conn, NULL, 0);
	}
	tcp_ctl_drop(&ctl->obj);
	return false;
}

static void report_down(struct tcp_ctl *ctl, struct prov_emit *emit)
{
	struct prov_cqe *cqe = prov_emit_next(emit, PROV_CTL_DOWN, ctl->context);

	cqe->ctl = (struct prov_ctl *)ctl;
	cqe->status = ctl->fail.status;
	cqe->vendor_code = ctl->fail.vendor_code;
	cqe->text = ctl->fail.text;
	ctl->down_reported = true;
}

bool tcp_ctl_step(struct prov_obj *obj, struct prov_emit *emit)
{
	struct tcp_ctl *ctl = LIST_ENTRY(obj, struct tcp_ctl, obj);

	if (ctl->draining)
		return drain_step(ctl);
	if (ctl->announce) {
		if (prov_emit_full(emit))
			return true;
		prov_emit_next(emit, PROV_CTL_NEW, NULL)->ctl = (struct prov_ctl *)ctl;
		ctl->announce = false;
		return true; /* messages wait until the core has set its context */
	}
	if (ctl->conn && dial_step(ctl)) {
		if (rx_step(ctl, emit))
			tx_step(ctl);
		else
			ctl_lost(ctl);
	}
	if (ctl->failed && !ctl->down_reported) {
		if (prov_emit_full(emit))
			return true;
		report_down(ctl, emit);
	}
	return ctl->conn && (rx_pending(ctl) || ctl->conn->can_read);
}

void tcp_op_ctl_close(struct prov_ctl *ctl_, bool flush)
{
	struct tcp_ctl *ctl = (struct tcp_ctl *)ctl_;

	if (!flush || !ctl->conn) {
		tcp_ctl_drop(&ctl->obj);
		return;
	}
	ctl->draining = true;
	prov_obj_timer(&ctl->obj, FLUSH_MS);
	(void)drain_step(ctl);
}
