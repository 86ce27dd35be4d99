/* SPDX-License-Identifier: Apache-2.0 */
/* How the two ends of a ctl find each other. The dialler makes its queue pair and sends DIAL until
 * an answer comes; the other side makes its own at the first DIAL of a token, joins it at once, and
 * says ACCEPT to every DIAL of that token. The dialler joins at ACCEPT and sends a first frame;
 * only that frame makes the ctl known to the core over there, so a DIAL that comes late, doubled or
 * from nobody costs a queue pair for a while and is never seen. */
#include "prov/verbs/ctl.h"

#include "base/log.h"
#include "plat/clock.h"
#include "plat/rand.h"
#include "prov/verbs/tcp_hello.h"
#include "prov/verbs/ud.h"

#include <errno.h>
#include <string.h>

enum {
	HALF_OPEN_MAX = 256,
	UD_TRIES = 5, /* 0.3 s of them before TCP is tried as well */
};

static void resend_later(struct verbs_ctl *ctl)
{
	uint64_t now_ns = ctl->obj.dev->now_ns;
	/* 10, 20, 40 ... 320 ms apart. */
	uint64_t after_ms = ctl->tries < 6 ? UINT64_C(10) << ctl->tries : 320;
	uint64_t left_ns = ctl->limit_ns > now_ns ? ctl->limit_ns - now_ns : 0;
	uint64_t after_ns = after_ms * CLOCK_NS_PER_MS;

	verbs_obj_timer(&ctl->obj, after_ns < left_ns ? after_ns : left_ns);
	ctl->tries++;
}

static bool can_ud(const struct verbs_ctl *ctl)
{
	return ctl->obj.dev->ud.qp && ctl->remote.ud_qpn != 0;
}

static bool can_tcp(const struct verbs_ctl *ctl)
{
	return ctl->obj.dev->use_tcp && ctl->remote.tcp_port != 0;
}

static void send_dial(struct verbs_ctl *ctl)
{
	struct verbs_hello h = { .type = VERBS_HELLO_DIAL,
		                 .token = ctl->token,
		                 .qpn = ctl->own.qpn,
		                 .psn = ctl->own.psn };

	if (ctl->way)
		verbs_ud_send(ctl->obj.dev, ctl->way, ctl->remote.ud_qpn, ctl->remote.ud_qkey, &h);
	resend_later(ctl);
	/* Datagrams that do not get through show only by silence. */
	if (can_tcp(ctl) && !ctl->by_tcp && (!ctl->way || ctl->tries > UD_TRIES)) {
		ctl->by_tcp = true;
		verbs_tcp_dial(ctl->obj.dev, &ctl->remote, &h);
	}
}

static void set_limit(struct verbs_ctl *ctl)
{
	struct verbs_dev *dev = ctl->obj.dev;

	ctl->limit_ns =
		clock_deadline_ns(clock_now_ns(), dev->limits.hello_timeout_ms * CLOCK_NS_PER_MS);
}

void verbs_dial_start(struct verbs_ctl *ctl, const struct prov_addr *to)
{
	struct verbs_dev *dev = ctl->obj.dev;
	struct verbs_fail fail = { 0 };

	set_limit(ctl);
	if (dev->dead) {
		verbs_ctl_fail(ctl, WIMM_E_NIC_LOST, 0, "%s", dev->dead_text);
		return;
	}
	if (verbs_addr_decode(to, &ctl->remote) != WIMM_OK) {
		verbs_ctl_fail(ctl, WIMM_E_PEER_LOST, 0, "malformed verbs address of %u bytes",
		               to->len_bytes);
		return;
	}
	if (!can_ud(ctl) && !can_tcp(ctl)) {
		verbs_ctl_fail(ctl, WIMM_E_UNSUPPORTED, 0,
		               "%s and the peer's NIC have no way of saying hello in common "
		               "(setting verbs_hello)",
		               dev->nic.name);
		return;
	}
	if (!verbs_wire_open(ctl, &fail))
		goto failed;
	if (can_ud(ctl))
		ctl->way = verbs_way_open(dev, ctl->remote.ethernet, ctl->remote.gid,
		                          ctl->remote.lid, &fail);
	if (!ctl->way && !can_tcp(ctl))
		goto failed;
	if (rand_bytes(&ctl->token, sizeof(ctl->token)) != WIMM_OK ||
	    hash_insert_ptr(&dev->dialled, ctl->token, ctl) != WIMM_OK) {
		verbs_fail_set(&fail, WIMM_E_NOMEM, 0, "out of memory");
		goto failed;
	}
	send_dial(ctl);
	return;
failed:
	verbs_ctl_fail(ctl, fail.status, fail.vendor_code, "%s", fail.text);
}

static void dial_end(struct verbs_ctl *ctl)
{
	if (ctl->state == VERBS_CTL_HALF)
		ctl->obj.dev->half_open--;
	verbs_way_put(ctl->obj.dev, ctl->way);
	ctl->way = NULL;
	ctl->state = VERBS_CTL_OPEN;
	verbs_obj_timer_off(&ctl->obj);
}

void verbs_dial_forget(struct verbs_ctl *ctl)
{
	struct verbs_dev *dev = ctl->obj.dev;
	struct hash *by_token = ctl->accepted ? &dev->accepted : &dev->dialled;

	/* Until now, so that a late DIAL of an accepted one finds it and is dropped. */
	if (hash_find_ptr(by_token, ctl->token) == ctl)
		(void)hash_remove(by_token, ctl->token);
	dial_end(ctl);
}

void verbs_dial_step(struct verbs_ctl *ctl)
{
	struct verbs_obj *obj = &ctl->obj;

	if (ctl->state == VERBS_CTL_HALF && ctl->in_head != ctl->in_tail) {
		dial_end(ctl);
		ctl->announce = true;
		return;
	}
	if (ctl->state == VERBS_CTL_OPEN || ctl->failed || !obj->expired)
		return;
	if (obj->dev->now_ns < ctl->limit_ns) {
		if (ctl->state == VERBS_CTL_DIALLING)
			send_dial(ctl);
		else
			resend_later(ctl);
		return;
	}
	verbs_ctl_fail(ctl, WIMM_E_TIMEOUT, 0,
	               "no answer within %u ms (setting hello_timeout_ms), %u hellos were sent",
	               obj->dev->limits.hello_timeout_ms, ctl->tries);
}

/* --- arrivals --- */

static struct verbs_end end_of(const struct verbs_hello *h, const struct verbs_addr *from)
{
	struct verbs_end e = { .ethernet = from->ethernet,
		               .mtu = from->mtu,
		               .lid = from->lid,
		               .qpn = h->qpn,
		               .psn = h->psn };

	memcpy(e.gid, from->gid, sizeof(e.gid));
	return e;
}

/* The accepted end of a new ctl. NULL: `fail` says why. */
static struct verbs_ctl *accept_new(struct verbs_dev *dev, const struct verbs_hello *h,
                                    const struct verbs_addr *from, struct verbs_fail *fail)
{
	struct verbs_end peer = end_of(h, from);
	struct verbs_ctl *ctl = verbs_ctl_new(dev);

	if (!ctl) {
		verbs_fail_set(fail, WIMM_E_NOMEM, 0, "out of memory");
		return NULL;
	}
	ctl->accepted = true;
	ctl->state = VERBS_CTL_HALF;
	ctl->token = h->token;
	ctl->remote = *from;
	dev->half_open++;
	set_limit(ctl);
	if (!verbs_wire_open(ctl, fail) || !verbs_wire_join(ctl, &peer, fail))
		goto undo;
	if (hash_insert_ptr(&dev->accepted, ctl->token, ctl) == WIMM_OK) {
		resend_later(ctl); /* only to notice when nobody comes */
		return ctl;
	}
	verbs_fail_set(fail, WIMM_E_NOMEM, 0, "out of memory");
undo:
	verbs_ctl_drop(&ctl->obj);
	return NULL;
}

bool verbs_dial_answer(struct verbs_dev *dev, const struct verbs_hello *h,
                       const struct verbs_addr *from, struct verbs_hello *out)
{
	struct verbs_ctl *ctl = hash_find_ptr(&dev->accepted, h->token);
	struct verbs_fail fail = { 0 };

	if (ctl && ctl->state != VERBS_CTL_HALF)
		return false; /* its dialler has had the answer and used it */
	if (!ctl && dev->half_open >= HALF_OPEN_MAX)
		return false; /* it asks again */
	if (!ctl)
		ctl = accept_new(dev, h, from, &fail);
	if (!ctl)
		LOG_ERROR("verbs: a peer was refused: %s", fail.text);
	*out = (struct verbs_hello){ .type = ctl ? VERBS_HELLO_ACCEPT : VERBS_HELLO_REFUSE,
		                     .token = h->token,
		                     .qpn = ctl ? ctl->own.qpn : h->qpn,
		                     .psn = ctl ? ctl->own.psn : 0,
		                     .status = ctl ? WIMM_OK : WIMM_E_LIMIT };
	return true;
}

void verbs_ctl_dialled(struct verbs_dev *dev, const struct verbs_hello *h,
                       const struct verbs_addr *from)
{
	struct verbs_hello answer;
	struct verbs_fail fail = { 0 };
	struct verbs_way *way;

	if (from->ud_qpn == 0 || !verbs_dial_answer(dev, h, from, &answer))
		return;
	way = verbs_way_open(dev, from->ethernet, from->gid, from->lid, &fail);
	if (!way) {
		LOG_WARN("verbs: a hello cannot be answered: %s", fail.text);
		return;
	}
	verbs_ud_send(dev, way, from->ud_qpn, from->ud_qkey, &answer);
	verbs_way_put(dev, way);
}

void verbs_dial_tcp_failed(struct verbs_dev *dev, uint64_t token, int code)
{
	struct verbs_ctl *ctl = hash_find_ptr(&dev->dialled, token);

	if (!ctl || ctl->state != VERBS_CTL_DIALLING || ctl->failed)
		return;
	if (code == ECONNREFUSED) /* as good as an answer: nobody is there any more */
		verbs_ctl_fail(ctl, WIMM_E_PEER_LOST, (uint32_t)code,
		               "nobody takes hellos at the peer's address any more: %s",
		               strerror(code));
	else
		ctl->by_tcp = false; /* again at the next DIAL */
}

void verbs_ctl_answered(struct verbs_dev *dev, const struct verbs_hello *h,
                        const struct verbs_addr *from)
{
	struct verbs_ctl *ctl = hash_find_ptr(&dev->dialled, h->token);
	struct verbs_end peer = end_of(h, from);
	struct verbs_fail fail;

	if (!ctl || ctl->state != VERBS_CTL_DIALLING || ctl->failed)
		return; /* a doubled or late answer */
	if (h->type == VERBS_HELLO_REFUSE) {
		verbs_ctl_fail(ctl, WIMM_E_PEER_REFUSED, (uint32_t)h->status,
		               "the peer's NIC refused: its log has the reason");
		return;
	}
	if (!verbs_wire_join(ctl, &peer, &fail)) {
		verbs_ctl_fail(ctl, fail.status, fail.vendor_code, "%s", fail.text);
		return;
	}
	dial_end(ctl);
	(void)verbs_wire_say(ctl, VERBS_FRAME_CREDIT);
	verbs_obj_ready(&ctl->obj);
}
