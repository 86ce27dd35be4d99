/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/verbs/ctl.h"

#include "base/alloc.h"
#include "plat/clock.h"

#include <endian.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
	LEN_BYTES = 4,
	FLUSH_MS = 1000,
	RX_BYTES = VERBS_CTL_MAX_BYTES + LEN_BYTES + VERBS_CTL_BUFFERS * VERBS_FRAME_BYTES,
	TX_BYTES = 8u << 20, /* more than four of the longest; a power of two */
};

struct verbs_ctl *verbs_ctl_new(struct verbs_dev *dev)
{
	struct verbs_ctl *ctl = mem_calloc(1, sizeof(*ctl));

	if (!ctl)
		return NULL;
	if (!verbs_obj_init(&ctl->obj, dev, VERBS_OBJ_CTL, &dev->ctls)) {
		mem_free(ctl);
		return NULL;
	}
	ctl->rx = mem_alloc(RX_BYTES);
	ctl->tx = mem_alloc(TX_BYTES);
	ctl->credits = VERBS_CTL_RECVS;
	if (ctl->rx && ctl->tx)
		return ctl;
	verbs_obj_kill(&ctl->obj);
	return NULL;
}

void verbs_ctl_free(struct verbs_obj *obj)
{
	struct verbs_ctl *ctl = LIST_ENTRY(obj, struct verbs_ctl, obj);

	verbs_wire_close(ctl);
	mem_free(ctl->rx);
	mem_free(ctl->tx);
	mem_free(ctl);
}

void verbs_ctl_drop(struct verbs_obj *obj)
{
	struct verbs_ctl *ctl = LIST_ENTRY(obj, struct verbs_ctl, obj);

	verbs_dial_forget(ctl);
	verbs_wire_close(ctl);
	verbs_obj_kill(obj);
}

bool verbs_ctl_draining(const struct verbs_obj *obj)
{
	return LIST_ENTRY(obj, struct verbs_ctl, obj)->draining;
}

void verbs_ctl_fail(struct verbs_ctl *ctl, wimm_status status, uint32_t vendor_code,
                    const char *fmt, ...)
{
	va_list args;

	if (ctl->failed)
		return;
	ctl->failed = true;
	ctl->fail.status = status;
	ctl->fail.vendor_code = vendor_code;
	va_start(args, fmt);
	(void)vsnprintf(ctl->fail.text, sizeof(ctl->fail.text), fmt, args);
	va_end(args);
	verbs_obj_timer_off(&ctl->obj);
	verbs_obj_ready(&ctl->obj);
}

struct prov_ctl *verbs_op_ctl_open(struct prov_dev *dev, const struct prov_addr *to, void *context)
{
	struct verbs_ctl *ctl = verbs_ctl_new((struct verbs_dev *)dev);

	if (!ctl)
		return NULL;
	ctl->context = context;
	verbs_dial_start(ctl, to);
	return (struct prov_ctl *)ctl;
}

void verbs_op_ctl_set_context(struct prov_ctl *ctl, void *context)
{
	((struct verbs_ctl *)ctl)->context = context;
}

static void tx_copy(struct verbs_ctl *ctl, const void *data, uint32_t len_bytes)
{
	uint32_t at = (uint32_t)(ctl->tx_tail & (TX_BYTES - 1));
	uint32_t first = len_bytes < TX_BYTES - at ? len_bytes : TX_BYTES - at;

	if (len_bytes == 0)
		return;
	memcpy(ctl->tx + at, data, first);
	memcpy(ctl->tx, (const uint8_t *)data + first, len_bytes - first);
	ctl->tx_tail += len_bytes;
}

wimm_status verbs_op_ctl_send(struct prov_ctl *ctl_, const void *data, uint32_t len_bytes)
{
	struct verbs_ctl *ctl = (struct verbs_ctl *)ctl_;
	uint32_t le = htole32(len_bytes);

	if (ctl->failed || ctl->bye || ctl->draining)
		return WIMM_E_PEER_LOST;
	if (len_bytes > VERBS_CTL_MAX_BYTES)
		return WIMM_E_TOO_LONG;
	if (TX_BYTES - (ctl->tx_tail - ctl->tx_head) < (uint64_t)LEN_BYTES + len_bytes)
		return WIMM_AGAIN;
	tx_copy(ctl, &le, LEN_BYTES);
	tx_copy(ctl, data, len_bytes);
	verbs_obj_ready(&ctl->obj);
	/* At once, so that a goodbye is on its way before what follows it. */
	if (ctl->state == VERBS_CTL_OPEN)
		verbs_wire_send(ctl);
	return WIMM_OK;
}

/* The stream's next bytes, up to `max` of them; returns how many. */
uint32_t verbs_ctl_take(struct verbs_ctl *ctl, uint8_t *out, uint32_t max)
{
	uint64_t left = ctl->tx_tail - ctl->tx_head;
	uint32_t n = left < max ? (uint32_t)left : max;
	uint32_t at = (uint32_t)(ctl->tx_head & (TX_BYTES - 1));
	uint32_t first = n < TX_BYTES - at ? n : TX_BYTES - at;

	memcpy(out, ctl->tx + at, first);
	memcpy(out + first, ctl->tx, n - first);
	ctl->tx_head += n;
	return n;
}

bool verbs_ctl_put(struct verbs_ctl *ctl, const uint8_t *data, uint32_t len_bytes)
{
	if (RX_BYTES - ctl->rx_end < len_bytes)
		return false;
	memcpy(ctl->rx + ctl->rx_end, data, len_bytes);
	ctl->rx_end += len_bytes;
	return true;
}

static uint32_t next_len(const struct verbs_ctl *ctl)
{
	uint32_t len;

	memcpy(&len, ctl->rx + ctl->rx_start, LEN_BYTES);
	return le32toh(len);
}

/* Whether a whole message waits for room in the caller's array. */
static bool rx_pending(const struct verbs_ctl *ctl)
{
	return ctl->rx_end - ctl->rx_start >= LEN_BYTES &&
	       ctl->rx_end - ctl->rx_start - LEN_BYTES >= next_len(ctl);
}

/* Hand out what is complete. False: the peer broke the protocol. */
static bool rx_tell(struct verbs_ctl *ctl, struct verbs_emit *emit)
{
	while (ctl->rx_end - ctl->rx_start >= LEN_BYTES && !verbs_emit_full(emit)) {
		uint32_t len = next_len(ctl);
		struct prov_cqe *cqe;

		if (len > VERBS_CTL_MAX_BYTES) {
			verbs_ctl_fail(ctl, WIMM_E_PROTOCOL, 0,
			               "peer announced a message of %u bytes, %u is the limit", len,
			               VERBS_CTL_MAX_BYTES);
			return false;
		}
		if (!rx_pending(ctl))
			return true;
		cqe = verbs_emit_next(emit, PROV_CTL_MSG, ctl->context);
		cqe->ctl = (struct prov_ctl *)ctl;
		cqe->data = ctl->rx + ctl->rx_start + LEN_BYTES;
		cqe->len_bytes = len;
		ctl->rx_start += LEN_BYTES + len;
	}
	return true;
}

/* What was handed out stays where it is until the next turn: frames come in before that. */
static void rx_step(struct verbs_ctl *ctl, struct verbs_emit *emit)
{
	if (!rx_pending(ctl)) {
		memmove(ctl->rx, ctl->rx + ctl->rx_start, ctl->rx_end - ctl->rx_start);
		ctl->rx_end -= ctl->rx_start;
		ctl->rx_start = 0;
		if (!verbs_wire_receive(ctl))
			return;
	}
	if (!rx_tell(ctl, emit))
		return;
	if (ctl->bye && ctl->in_head == ctl->in_tail && !rx_pending(ctl))
		verbs_ctl_fail(ctl, WIMM_E_PEER_LOST, 0, "closed by the peer");
}

static bool report_down(struct verbs_ctl *ctl, struct verbs_emit *emit)
{
	struct prov_cqe *cqe;

	if (verbs_emit_full(emit))
		return true;
	cqe = verbs_emit_next(emit, PROV_CTL_DOWN, ctl->context);
	cqe->ctl = (struct prov_ctl *)ctl;
	cqe->status = ctl->fail.status;
	cqe->vendor_code = ctl->fail.vendor_code;
	cqe->text = ctl->fail.text;
	ctl->down_reported = true;
	return false;
}

/* Closed by the core: only what was sent before still matters, and that the peer hears of it. */
static bool drain_step(struct verbs_ctl *ctl)
{
	struct verbs_obj *obj = &ctl->obj;

	verbs_dial_step(ctl);
	if (ctl->state == VERBS_CTL_OPEN && !ctl->failed) {
		ctl->rx_start = ctl->rx_end = 0;
		if (verbs_wire_receive(ctl))
			verbs_wire_send(ctl);
		if (!ctl->failed && ctl->tx_head == ctl->tx_tail && !ctl->bye_sent)
			ctl->bye_sent = verbs_wire_say(ctl, VERBS_FRAME_BYE);
	}
	if (ctl->failed || ctl->bye || obj->dev->now_ns >= ctl->limit_ns ||
	    (ctl->bye_sent && ctl->send_head == ctl->send_tail)) {
		verbs_ctl_drop(obj);
		return false;
	}
	if (!list_linked(&obj->timed))
		verbs_obj_timer(obj, ctl->limit_ns - obj->dev->now_ns);
	return ctl->in_head != ctl->in_tail;
}

bool verbs_ctl_step(struct verbs_obj *obj, struct verbs_emit *emit)
{
	struct verbs_ctl *ctl = LIST_ENTRY(obj, struct verbs_ctl, obj);

	if (ctl->draining)
		return drain_step(ctl);
	if (ctl->state == VERBS_CTL_HALF) {
		verbs_dial_step(ctl);
		if (ctl->failed) { /* nobody has heard of it yet */
			verbs_ctl_drop(obj);
			return false;
		}
		if (ctl->state == VERBS_CTL_HALF)
			return false;
	}
	if (ctl->announce) {
		if (verbs_emit_full(emit))
			return true;
		verbs_emit_next(emit, PROV_CTL_NEW, NULL)->ctl = (struct prov_ctl *)ctl;
		ctl->announce = false;
		return true; /* messages wait until the core has set its context */
	}
	if (ctl->state == VERBS_CTL_DIALLING && !ctl->failed)
		verbs_dial_step(ctl);
	if (ctl->state == VERBS_CTL_OPEN && !ctl->failed)
		rx_step(ctl, emit);
	if (ctl->state == VERBS_CTL_OPEN && !ctl->failed)
		verbs_wire_send(ctl);
	if (ctl->failed && !ctl->down_reported)
		return report_down(ctl, emit);
	return !ctl->failed && (rx_pending(ctl) || ctl->in_head != ctl->in_tail);
}

void verbs_ctl_extend(struct verbs_ctl *ctl)
{
	ctl->limit_ns = clock_deadline_ns(clock_now_ns(), FLUSH_MS * CLOCK_NS_PER_MS);
}

void verbs_op_ctl_close(struct prov_ctl *ctl_, bool flush)
{
	struct verbs_ctl *ctl = (struct verbs_ctl *)ctl_;

	if (!flush && ctl->state == VERBS_CTL_DIALLING) {
		verbs_ctl_drop(&ctl->obj);
		return;
	}
	if (!flush)
		ctl->tx_head = ctl->tx_tail;
	/* The queue pair of a peer that broke the rules still tells it so. */
	if (ctl->failed && ctl->fail.status == WIMM_E_PROTOCOL && ctl->state == VERBS_CTL_OPEN)
		ctl->failed = false;
	ctl->draining = true;
	verbs_ctl_extend(ctl);
	/* Not now: the core may be reading a message that lies in rx. */
	verbs_obj_ready(&ctl->obj);
}
