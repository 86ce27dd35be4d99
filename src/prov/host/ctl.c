/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/host/ctl.h"

#include "base/alloc.h"

#include <endian.h>
#include <string.h>
#include <sys/uio.h>

enum {
	LEN_BYTES = 4,
	RETRY_MS = 5,
	FLUSH_MS = 1000,
	RX_BYTES = HOST_CTL_MAX_BYTES + LEN_BYTES + HOST_PACKET_MAX,
	TX_BYTES = 8u << 20, /* more than four of the longest; a power of two */
	PACKETS_A_TURN = 16,
};

struct host_ctl {
	struct prov_obj obj;
	struct host_conn *conn; /* NULL: not yet, or lost */
	void *context;
	struct host_name to;
	uint64_t give_up_ns; /* dialling */
	bool dialling;
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

static struct host_ctl *ctl_new(struct host_dev *dev)
{
	struct host_ctl *ctl = mem_calloc(1, sizeof(*ctl));

	if (!ctl)
		return NULL;
	ctl->rx = mem_alloc(RX_BYTES);
	ctl->tx = mem_alloc(TX_BYTES);
	prov_obj_init(&ctl->obj, &dev->loop, HOST_OBJ_CTL, &dev->ctls);
	if (ctl->rx && ctl->tx)
		return ctl;
	list_remove(&ctl->obj.all);
	host_ctl_free(&ctl->obj);
	return NULL;
}

void host_ctl_free(struct prov_obj *obj)
{
	struct host_ctl *ctl = LIST_ENTRY(obj, struct host_ctl, obj);

	mem_free(ctl->rx);
	mem_free(ctl->tx);
	mem_free(ctl);
}

static void release_conn(struct host_ctl *ctl)
{
	if (ctl->conn)
		host_conn_close(ctl->conn);
	ctl->conn = NULL;
}

void host_ctl_drop(struct prov_obj *obj)
{
	release_conn(LIST_ENTRY(obj, struct host_ctl, obj));
	prov_obj_kill(obj);
}

bool host_ctl_draining(const struct prov_obj *obj)
{
	return LIST_ENTRY(obj, struct host_ctl, obj)->draining;
}

bool host_ctl_accepted(struct host_conn *conn)
{
	struct host_ctl *ctl = ctl_new(host_dev_of(&conn->obj));

	if (!ctl)
		return false;
	ctl->conn = conn;
	ctl->announce = true;
	conn->owner = &ctl->obj;
	prov_obj_ready(&ctl->obj);
	return true;
}

static void ctl_lost(struct host_ctl *ctl)
{
	ctl->failed = true;
	ctl->dialling = false;
	release_conn(ctl);
	prov_obj_timer_off(&ctl->obj);
}

struct prov_ctl *host_op_ctl_open(struct prov_dev *dev_, const struct prov_addr *to, void *context)
{
	struct host_dev *dev = (struct host_dev *)dev_;
	struct host_ctl *ctl = ctl_new(dev);

	if (!ctl)
		return NULL;
	ctl->context = context;
	ctl->dialling = true;
	ctl->give_up_ns = dev->loop.now_ns + dev->hello_timeout_ms * UINT64_C(1000000);
	if (host_name_decode(to, &ctl->to) != WIMM_OK) {
		prov_fail_set(&ctl->fail, WIMM_E_PEER_LOST, 0, "malformed host address of %u bytes",
		              to->len_bytes);
		ctl_lost(ctl);
	}
	prov_obj_ready(&ctl->obj);
	return (struct prov_ctl *)ctl;
}

void host_op_ctl_set_context(struct prov_ctl *ctl, void *context)
{
	((struct host_ctl *)ctl)->context = context;
}

static void tx_copy(struct host_ctl *ctl, const void *data, uint32_t len_bytes)
{
	uint32_t at = (uint32_t)(ctl->tx_tail & (TX_BYTES - 1));
	uint32_t first = len_bytes < TX_BYTES - at ? len_bytes : TX_BYTES - at;

	if (len_bytes == 0)
		return;
	memcpy(ctl->tx + at, data, first);
	memcpy(ctl->tx, (const uint8_t *)data + first, len_bytes - first);
	ctl->tx_tail += len_bytes;
}

wimm_status host_op_ctl_send(struct prov_ctl *ctl_, const void *data, uint32_t len_bytes)
{
	struct host_ctl *ctl = (struct host_ctl *)ctl_;
	uint32_t len = htole32(len_bytes);

	if (ctl->failed)
		return WIMM_E_PEER_LOST;
	if (len_bytes > HOST_CTL_MAX_BYTES)
		return WIMM_E_TOO_LONG;
	if (TX_BYTES - (ctl->tx_tail - ctl->tx_head) < (uint64_t)len_bytes + LEN_BYTES)
		return WIMM_AGAIN;
	tx_copy(ctl, &len, LEN_BYTES);
	tx_copy(ctl, data, len_bytes);
	prov_obj_ready(&ctl->obj);
	return WIMM_OK;
}

static void tx_step(struct host_ctl *ctl)
{
	while (ctl->tx_head != ctl->tx_tail && ctl->conn->can_write) {
		uint32_t at = (uint32_t)(ctl->tx_head & (TX_BYTES - 1));
		uint64_t left = ctl->tx_tail - ctl->tx_head;
		uint64_t len = left < HOST_PACKET_MAX - 1 ? left : HOST_PACKET_MAX - 1;
		uint64_t first = len < TX_BYTES - at ? len : TX_BYTES - at;
		struct iovec iov[2] = { { ctl->tx + at, first }, { ctl->tx, len - first } };

		if (!host_conn_send(ctl->conn, HOST_PACKET_BYTES, iov, len > first ? 2 : 1, -1))
			return;
		ctl->tx_head += len;
	}
}

/* Hand out what is complete. False: the peer broke the protocol. */
static bool rx_emit(struct host_ctl *ctl, struct prov_emit *emit)
{
	while (ctl->rx_end - ctl->rx_start >= LEN_BYTES && !prov_emit_full(emit)) {
		struct prov_cqe *cqe;
		uint32_t len;

		memcpy(&len, ctl->rx + ctl->rx_start, LEN_BYTES);
		len = le32toh(len);
		if (len > HOST_CTL_MAX_BYTES) {
			prov_fail_set(&ctl->fail, WIMM_E_PROTOCOL, 0,
			              "peer announced a message of %u bytes, %u is the limit", len,
			              HOST_CTL_MAX_BYTES);
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
static bool rx_pending(const struct host_ctl *ctl)
{
	uint32_t len;

	if (ctl->rx_end - ctl->rx_start < LEN_BYTES)
		return false;
	memcpy(&len, ctl->rx + ctl->rx_start, LEN_BYTES);
	return ctl->rx_end - ctl->rx_start - LEN_BYTES >= le32toh(len);
}

/* One packet behind what is there; its kind byte is overwritten by its bytes. 1: taken, 0: none
 * now, -1: lost. */
static int rx_packet(struct host_ctl *ctl)
{
	uint8_t *at = ctl->rx + ctl->rx_end;
	ssize_t got = host_conn_recv(ctl->conn, at, HOST_PACKET_MAX, NULL);

	if (got == 0)
		return 0;
	if (got < 0) {
		host_conn_fail_text(ctl->conn, &ctl->fail, WIMM_E_PEER_LOST, "connection lost");
		return -1;
	}
	if (at[0] == HOST_PACKET_REFUSED && got == 2) {
		prov_fail_set(&ctl->fail, WIMM_E_PEER_REFUSED, 0, "%s", host_refusal_text(at[1]));
		return -1;
	}
	if (at[0] != HOST_PACKET_BYTES || got < 2) {
		prov_fail_set(&ctl->fail, WIMM_E_PROTOCOL, 0, "peer sent a packet of kind %u",
		              at[0]);
		return -1;
	}
	memmove(at, at + 1, (size_t)got - 1);
	ctl->rx_end += (uint32_t)got - 1;
	return 1;
}

/* Some packets a turn, before anything is handed out: what was handed out stays where it is until
 * the next turn. False: lost. */
static bool rx_step(struct host_ctl *ctl, struct prov_emit *emit)
{
	int got = 1;

	if (!rx_pending(ctl) && ctl->conn->can_read) {
		memmove(ctl->rx, ctl->rx + ctl->rx_start, ctl->rx_end - ctl->rx_start);
		ctl->rx_end -= ctl->rx_start;
		ctl->rx_start = 0;
		for (int i = 0; i < PACKETS_A_TURN && got == 1; i++) {
			if (RX_BYTES - ctl->rx_end < HOST_PACKET_MAX)
				break;
			got = rx_packet(ctl);
		}
	}
	/* What came whole before the end still counts. */
	return rx_emit(ctl, emit) && (got >= 0 || rx_pending(ctl));
}

/* False: not open (yet, or any more). */
static bool dial_step(struct host_ctl *ctl)
{
	wimm_status st;

	if (!ctl->dialling)
		return ctl->conn != NULL;
	st = host_conn_dial(host_dev_of(&ctl->obj), &ctl->to, HOST_CONN_CTL, NULL, &ctl->obj,
	                    &ctl->conn, &ctl->fail);
	if (st == WIMM_OK) {
		ctl->dialling = false;
		return true;
	}
	if (st == WIMM_AGAIN && ctl->obj.loop->now_ns < ctl->give_up_ns) {
		prov_obj_timer(&ctl->obj, RETRY_MS);
		return false;
	}
	if (st == WIMM_AGAIN)
		prov_fail_set(&ctl->fail, WIMM_E_TIMEOUT, 0, "\"%s\" accepts no connection",
		              ctl->to.text);
	ctl_lost(ctl);
	return false;
}

/* Closed by the core: only what was sent before still matters. */
static bool drain_step(struct host_ctl *ctl)
{
	if (dial_step(ctl)) {
		tx_step(ctl);
		if (ctl->tx_head != ctl->tx_tail && !ctl->conn->broken &&
		    ctl->obj.loop->now_ns < ctl->give_up_ns) {
			prov_obj_timer(&ctl->obj, RETRY_MS);
			return false;
		}
	} else if (ctl->dialling) {
		return false;
	}
	host_ctl_drop(&ctl->obj); /* what the kernel has taken still arrives */
	return false;
}

static void report_down(struct host_ctl *ctl, struct prov_emit *emit)
{
	struct prov_cqe *cqe = prov_emit_next(emit, PROV_CTL_DOWN, ctl->context);

	cqe->ctl = (struct prov_ctl *)ctl;
	cqe->status = ctl->fail.status;
	cqe->vendor_code = ctl->fail.vendor_code;
	cqe->text = ctl->fail.text;
	ctl->down_reported = true;
}

bool host_ctl_step(struct prov_obj *obj, struct prov_emit *emit)
{
	struct host_ctl *ctl = LIST_ENTRY(obj, struct host_ctl, obj);

	if (ctl->draining)
		return drain_step(ctl);
	if (ctl->announce) {
		if (prov_emit_full(emit))
			return true;
		prov_emit_next(emit, PROV_CTL_NEW, NULL)->ctl = (struct prov_ctl *)ctl;
		ctl->announce = false;
		return true; /* messages wait until the core has set its context */
	}
	if (dial_step(ctl)) {
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

void host_op_ctl_close(struct prov_ctl *ctl_, bool flush)
{
	struct host_ctl *ctl = (struct host_ctl *)ctl_;

	if (!flush || ctl->failed || ctl->tx_head == ctl->tx_tail) {
		host_ctl_drop(&ctl->obj);
		return;
	}
	ctl->draining = true;
	ctl->give_up_ns = ctl->obj.loop->now_ns + FLUSH_MS * UINT64_C(1000000);
	(void)drain_step(ctl);
}
