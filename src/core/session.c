/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: their messages, their channels, time and goodbye. hello.c starts them. */
#include "core/session.h"
#include "core/engine.h"
#include "core/fence.h"
#include "core/marks.h"
#include "core/stage.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/log.h"
#include "plat/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Messages to one peer that wait for room on its ctl. More than what the default limits let a
 * program ask for at a time: each region ended, and each operation begun on a region of its own. */
#define OUTBOX_MAX 131072
/* For what a leaving peer has posted to be counted; it lingers for longer. */
#define GOODBYE_WAIT_NS (30 * CLOCK_NS_PER_MS)

/* Channels that have not said hello. The one that has kept silent for longest makes room. */
#define STRANGERS_MAX 256

/* A message that waits for room on the ctl. */
struct outgoing {
	struct list link;
	uint32_t len_bytes;
	uint8_t bytes[];
};

/* "6f1c..": enough of an instance to tell two apart. */
const char *session_instance_text(const uint8_t *instance, char out[17])
{
	for (int i = 0; i < 8; i++)
		(void)snprintf(out + 2 * i, 3, "%02x", instance[i]);
	return out;
}

const char *session_addr_text(const struct wire_addr *addr, char *out, size_t out_bytes)
{
	char whole[WIMM_NET_ADDR_MAX_TEXT];

	if (wire_addr_format(addr, whole, sizeof(whole)) != WIMM_OK)
		(void)snprintf(out, out_bytes, "(unknown address)");
	else if ((size_t)snprintf(out, out_bytes, "%s", whole) >= out_bytes)
		memcpy(out + out_bytes - 4, "...", 4); /* the first NICs tell who it is */
	return out;
}

/* --- sending --- */

static bool may_be_dropped(enum wire_type type)
{
	return type == WIRE_HEARTBEAT || type == WIRE_MSG;
}

wimm_status session_send(struct worker *w, struct peer *p, const struct wire_msg *m)
{
	struct outgoing *o;
	uint32_t len;
	wimm_status st = WIMM_AGAIN;

	if (p->ctl == NULL) /* a peer that is ending needs no more messages */
		return p->ending_step != 0 ? WIMM_OK : WIMM_E_PEER_LOST;
	len = wire_encode(m, w->scratch, w->scratch_bytes);
	ASSERT(len != 0);
	auth_seal(w, p, m->type, w->scratch, len);
	p->last_tx_ns = w->now_ns;
	if (list_empty(&p->outbox))
		st = ctl_ops(w, p->ctl)->ctl_send(p->ctl->prov, w->scratch, len);
	if (st != WIMM_AGAIN || (may_be_dropped(m->type) && m->type != WIRE_HEARTBEAT))
		return st;
	if (m->type == WIRE_HEARTBEAT && m->u.marks.id == 0)
		return WIMM_OK; /* the channel is full of what says as much */
	if (p->outbox_count >= OUTBOX_MAX)
		return WIMM_E_LIMIT;
	o = mem_alloc(sizeof(*o) + len);
	if (o == NULL)
		return WIMM_E_NOMEM;
	o->len_bytes = len;
	memcpy(o->bytes, w->scratch, len);
	list_push_back(&p->outbox, &o->link);
	p->outbox_count++;
	if (!list_linked(&p->talk_link))
		list_push_back(&w->talkers, &p->talk_link);
	return WIMM_OK;
}

void session_say(struct worker *w, struct peer *p, const struct wire_msg *m)
{
	wimm_status st;

	if (p->state == PEER_DOWN)
		return;
	st = session_send(w, p, m);
	if (st == WIMM_E_NOMEM)
		peer_down(w, p, st, 0, "no memory for a session message to it");
	else if (st == WIMM_E_LIMIT)
		peer_down(w, p, st, 0, "%d session messages wait for it already", OUTBOX_MAX);
	else if (st != WIMM_OK && st != WIMM_AGAIN) /* its last words are still to be read */
		peer_ending(w, p, true, WIMM_E_PEER_LOST, 0, "cannot send it session messages: %s",
		            wimm_status_text(st));
}

void session_talk(struct worker *w)
{
	LIST_FOR_EACH(it, &w->talkers) {
		struct peer *p = LIST_ENTRY(it, struct peer, talk_link);

		while (!list_empty(&p->outbox) && p->ctl != NULL) {
			struct outgoing *o = LIST_ENTRY(p->outbox.next, struct outgoing, link);

			if (ctl_ops(w, p->ctl)->ctl_send(p->ctl->prov, o->bytes, o->len_bytes) ==
			    WIMM_AGAIN)
				break;
			list_remove(&o->link);
			mem_free(o);
			p->outbox_count--;
		}
		if (list_empty(&p->outbox))
			list_remove(&p->talk_link);
	}
}

/* --- ctl channels --- */

struct ctl *session_ctl_new(struct worker *w, uint32_t nic)
{
	struct ctl *c = mem_calloc(1, sizeof(*c));

	if (c == NULL)
		return NULL;
	c->context.kind = CONTEXT_CTL;
	c->nic = nic;
	c->opened_ns = w->now_ns;
	list_init(&c->link);
	return c;
}

void session_ctl_drop(struct worker *w, struct ctl *c, bool flush)
{
	ctl_ops(w, c)->ctl_close(c->prov, flush);
	if (c->peer == NULL && list_linked(&c->link))
		w->stranger_count--;
	list_remove(&c->link);
	c->dead = true; /* events of it may stand in the batch that is being handled */
	list_push_back(&w->dead_ctls, &c->link);
}

void session_drop_stranger(struct worker *w, struct list *link)
{
	session_ctl_drop(w, LIST_ENTRY(link, struct ctl, link), false);
}

void session_bury(struct worker *w)
{
	while (!list_empty(&w->dead_ctls))
		mem_free(LIST_ENTRY(list_pop_front(&w->dead_ctls), struct ctl, link));
}

void session_drop_ctl(struct worker *w, struct peer *p)
{
	while (!list_empty(&p->outbox))
		mem_free(LIST_ENTRY(list_pop_front(&p->outbox), struct outgoing, link));
	p->outbox_count = 0;
	if (list_linked(&p->talk_link))
		list_remove(&p->talk_link);
	if (p->ctl != NULL)
		session_ctl_drop(w, p->ctl,
		                 p->leaving || p->cause == WIMM_E_VERSION ||
		                         p->cause == WIMM_E_PROTOCOL);
	p->ctl = NULL;
}

/* --- events --- */

static void ctl_down(struct worker *w, struct ctl *c, const struct prov_cqe *e) ON_WORKER
{
	struct peer *p = c->peer;
	char text[256];

	if (p == NULL) {
		session_ctl_drop(w, c, false);
		return;
	}
	session_ctl_drop(w, c, false);
	p->ctl = NULL;
	if (p->state == PEER_CONNECTING && p->initiator && p->path_count == 0 &&
	    !p->awaiting_hello && hello_dial_next(w, p))
		return;
	peer_ending(w, p, false, e->status == WIMM_E_PROTOCOL ? e->status : WIMM_E_PEER_LOST,
	            e->vendor_code, "%s at %s", e->text != NULL ? e->text : "the connection ended",
	            session_addr_text(&p->addr, text, sizeof(text)));
}

static void ctl_message(struct worker *w, struct ctl *c, const struct prov_cqe *e) ON_WORKER
{
	struct wire_msg m;
	wimm_status st = wire_decode(e->data, e->len_bytes, &m);
	struct peer *p = c->peer;

	if (p == NULL) {
		if (st == WIMM_OK && m.type == WIRE_HELLO) {
			hello_arrived(w, c, &m);
		} else {
			LOG_WARN("NIC %" PRIu32 ": a stranger was dropped: %s", c->nic,
			         st == WIMM_OK ? "it did not begin with a hello"
			                       : wimm_status_text(st));
			session_ctl_drop(w, c, false);
		}
		return;
	}
	p->last_rx_ns = w->now_ns;
	if (st != WIMM_OK) {
		peer_down(w, p, st == WIMM_E_VERSION ? st : WIMM_E_PROTOCOL, 0,
		          "a malformed message of %" PRIu32 " bytes, version %u", e->len_bytes,
		          e->len_bytes != 0 ? e->data[0] : 0u);
		return;
	}
	session_message(w, p, &m);
}

void session_message(struct worker *w, struct peer *p, const struct wire_msg *m)
{
	if (!p->agreed && m->type != WIRE_HELLO_ACK && m->type != WIRE_PATHS &&
	    m->type != WIRE_GOODBYE) {
		peer_down(w, p, WIMM_E_PROTOCOL, 0,
		          "a message of type %u before the session was agreed on",
		          (unsigned)m->type);
		return;
	}
	switch (m->type) {
	case WIRE_HELLO:
		peer_down(w, p, WIMM_E_PROTOCOL, 0, "a second hello in one session");
		return;
	case WIRE_HELLO_ACK:
		hello_acked(w, p, m);
		return;
	case WIRE_PATHS:
		hello_paths(w, p, m);
		return;
	case WIRE_GOODBYE:
		p->goodbye = true;
		peer_ending(w, p, false, WIMM_E_PEER_LOST, 0, "it said goodbye");
		return;
	case WIRE_HEARTBEAT:
	case WIRE_CONFIRM:
	case WIRE_RETIRE:
	case WIRE_RETIRE_ACK:
	case WIRE_ABANDON:
		count_message(w, p, m);
		return;
	case WIRE_LAND_ASK:
	case WIRE_LAND_AREA:
	case WIRE_LANDED:
		stage_message(w, p, m);
		return;
	case WIRE_FENCE:
	case WIRE_FENCE_ACK:
		fence_message(w, p, m);
		return;
	case WIRE_PATH_OPEN:
	case WIRE_PATH_STATE:
	case WIRE_ALIVE_ASK:
	case WIRE_ALIVE:
		path_message(w, p, m);
		return;
	case WIRE_MR_CHECK:
	case WIRE_REVOKE_ACK:
		mr_message(w, p, m);
		return;
	case WIRE_MR_STATE:
	case WIRE_REVOKE:
		remote_message(w, p, m);
		return;
	case WIRE_MSG:
		message_arrived(w, p, m);
		return;
	case WIRE_MSG_ACK:
		message_acked(w, p, m);
		return;
	case WIRE_MSG_READY:
		message_ready(w, p);
		return;
	}
}

static void stranger_came(struct worker *w, uint32_t nic, struct prov_ctl *prov) ON_WORKER
{
	/* Sessions begin at NICs; the device for neighbours has none of its own. */
	struct ctl *c = nic < w->nic_count ? session_ctl_new(w, nic) : NULL;

	if (c == NULL) {
		w->nic[nic].ops->ctl_close(prov, false);
		return;
	}
	if (w->stranger_count >= STRANGERS_MAX)
		session_drop_stranger(w, w->strangers.next);
	c->prov = prov;
	ctl_ops(w, c)->ctl_set_context(prov, c);
	list_push_back(&w->strangers, &c->link);
	w->stranger_count++;
}

void session_cqe(struct worker *w, uint32_t nic, const struct prov_cqe *c)
{
	struct context *context = c->context;
	struct ctl *ctl;

	if (c->kind == PROV_NIC_DOWN) {
		LOG_ERROR("NIC %" PRIu32 " is lost: %s", nic,
		          c->text != NULL ? c->text : wimm_status_text(c->status));
		w->nic[nic].dead = true;
		return;
	}
	if (c->kind == PROV_NIC_UP) {
		LOG_INFO("NIC %" PRIu32 " is back", nic);
		w->nic[nic].dead = false;
		return;
	}
	if (c->kind == PROV_CTL_NEW) {
		stranger_came(w, nic, c->ctl);
		return;
	}
	if (context->kind == CONTEXT_PATH) {
		path_event(w, LIST_ENTRY(context, struct path, context), c);
		return;
	}
	ctl = LIST_ENTRY(context, struct ctl, context);
	if (ctl->dead)
		return;
	if (c->kind == PROV_CTL_MSG)
		ctl_message(w, ctl, c);
	else
		ctl_down(w, ctl, c);
}

/* --- time --- */

static void send_heartbeat(struct worker *w, struct peer *p) ON_WORKER
{
	struct wire_msg m;

	count_fill_marks(p, &m, 0);
	session_say(w, p, &m);
}

void session_knock(struct worker *w, struct peer *p)
{
	if (p->state == PEER_UP && p->ctl != NULL && p->ending_step == 0)
		send_heartbeat(w, p);
}

static void scan_peer(struct worker *w, struct peer *p) ON_WORKER
{
	uint64_t silent = w->now_ns > p->last_rx_ns ? w->now_ns - p->last_rx_ns : 0;
	char text[256];

	if (p->alias != NULL)
		return;
	if (p->state == PEER_CONNECTING && w->now_ns >= p->connect_deadline_ns) {
		path_maybe_up(w, p, true);
		if (p->state == PEER_CONNECTING)
			peer_down(w, p, WIMM_E_PEER_LOST, 0,
			          "no session with %s within %" PRIu64
			          " ms (setting hello_timeout_ms)",
			          session_addr_text(&p->addr, text, sizeof(text)),
			          w->hello_timeout_ns / CLOCK_NS_PER_MS);
	}
	if (p->state != PEER_UP)
		return;
	if (silent >= p->timeout_ns) {
		peer_down(w, p, WIMM_E_PEER_LOST, 0,
		          "silent for %" PRIu64 " ms, allowed are %" PRIu64
		          " (setting peer_timeout_ms)",
		          silent / CLOCK_NS_PER_MS, p->timeout_ns / CLOCK_NS_PER_MS);
		return;
	}
	if (w->now_ns - p->last_tx_ns >= w->heartbeat_ns)
		send_heartbeat(w, p);
}

void session_scan(struct worker *w)
{
	/* peer_down() frees nothing here: a peer goes only after its event has run. */
	LIST_FOR_EACH(it, &w->peers) {
		struct peer *p = LIST_ENTRY(it, struct peer, link);

		scan_peer(w, p);
		if (p->land_wanted && p->state == PEER_UP)
			stage_asked(w, p);
	}
	LIST_FOR_EACH(it, &w->strangers) {
		struct ctl *c = LIST_ENTRY(it, struct ctl, link);

		if (w->now_ns - c->opened_ns >= w->hello_timeout_ns)
			session_ctl_drop(w, c, false);
	}
}

void session_chore(struct worker *w, uint64_t *due_ns, uint64_t at_ns)
{
	*due_ns = at_ns;
	if (at_ns < w->chores_ns)
		w->chores_ns = at_ns;
}

void session_chores(struct worker *w)
{
	w->chores_ns = CLOCK_NEVER_NS;
	LIST_FOR_EACH(it, &w->peers) {
		struct peer *p = LIST_ENTRY(it, struct peer, link);

		for (uint32_t k = 0; k < p->path_count; k++) {
			uint64_t *due_ns = &p->path[k].due_ns;

			if (*due_ns != 0 && *due_ns <= w->now_ns)
				path_due(w, &p->path[k]);
			else if (*due_ns != 0)
				session_chore(w, due_ns, *due_ns);
		}
		if (p->redial_ns == 0 || p->state != PEER_CONNECTING)
			continue;
		if (p->redial_ns <= w->now_ns)
			hello_redial(w, p);
		else
			session_chore(w, &p->redial_ns, p->redial_ns);
	}
}

/* What was acked to a peer that leaves may become visible behind its goodbye, which comes with how
 * much it posted. */
static uint64_t ending_due_ns(const struct peer *p)
{
	if (!p->goodbye || p->asked.id == 0 || count_reached(p, &p->asked))
		return p->ending_ns;
	return clock_deadline_ns(p->ending_ns, GOODBYE_WAIT_NS);
}

void session_endings(struct worker *w)
{
	uint64_t next_ns = CLOCK_NEVER_NS;

	LIST_FOR_EACH(it, &w->peers) {
		struct peer *p = LIST_ENTRY(it, struct peer, link);
		uint64_t due_ns;

		if (p->ending_step == 0 || p->state == PEER_DOWN)
			continue;
		due_ns = ending_due_ns(p);
		/* What it sent before has been read: every NIC was polled empty since. */
		if (p->ending_step < w->step && due_ns <= w->now_ns)
			peer_down(w, p, p->ending_cause, p->ending_code, "%s",
			          p->goodbye ? "it said goodbye" : p->ending_text);
		else if (due_ns < next_ns)
			next_ns = due_ns;
	}
	w->endings_ns = next_ns;
}

void session_goodbye(struct worker *w, struct peer *p, wimm_status reason, const char *text)
{
	struct wire_msg m;

	if (p->state != PEER_UP || p->ctl == NULL || p->alias != NULL)
		return;
	confirm_last(w, p);
	if (p->state != PEER_UP)
		return;
	memset(&m, 0, sizeof(m));
	m.type = WIRE_GOODBYE;
	m.u.goodbye.reason = reason;
	m.u.goodbye.text = text;
	m.u.goodbye.text_len_bytes = (uint32_t)strlen(text);
	p->leaving = true;
	session_say(w, p, &m);
}
