/* SPDX-License-Identifier: Apache-2.0 */
/* The calls that name peers. */
#include "core/args.h"
#include "core/engine.h"
#include "core/error_text.h"
#include "core/same_host.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct peer_args {
	const struct wire_addr *addr;
	struct wimm_error_info *error;
	struct wimm_peer_info *info;
	uint64_t timeout_ns; /* 0: as it was */
	wimm_peer id;
	wimm_status status;
};

/* Slots that one plain address may take while what answers there is heard. The second one is for a
 * caller who knows that the process was started again before this engine does. */
#define PLAIN_MAX 2

static bool same_place(const struct wire_addr *a, const struct wire_addr *b)
{
	if (a->nic_count != b->nic_count)
		return false;
	for (uint32_t i = 0; i < a->nic_count; i++)
		if (a->nic[i].len_bytes != b->nic[i].len_bytes ||
		    memcmp(a->nic[i].bytes, b->nic[i].bytes, a->nic[i].len_bytes) != 0)
			return false;
	return true;
}

/* One that was added by this plain address and is connecting or heard. NULL: dial. */
static struct peer *peer_by_place(struct worker *w, const struct wire_addr *addr) ON_WORKER
{
	struct peer *last = NULL;
	uint32_t n = 0;

	LIST_FOR_EACH(it, &w->peers) {
		struct peer *p = LIST_ENTRY(it, struct peer, link);
		struct peer *real = peer_real(p);

		if (!p->by_place || !same_place(&p->place, addr) || p->state == PEER_DOWN ||
		    real->state == PEER_DOWN || real->ending_step != 0)
			continue;
		if (p->state == PEER_CONNECTING)
			return p;
		if (w->now_ns - real->last_rx_ns > 2 * w->heartbeat_ns)
			continue;
		last = p;
		n++;
	}
	return n >= PLAIN_MAX ? last : NULL;
}

struct peer *peer_get(struct worker *w, const struct wire_addr *addr, wimm_status *out_status)
{
	static const uint8_t nobody[WIMM_INSTANCE_BYTES];
	bool self = memcmp(addr->instance, w->engine->self.instance, sizeof(nobody)) == 0;
	bool known = memcmp(addr->instance, nobody, sizeof(nobody)) != 0;
	struct peer *p = known ? peer_by_instance(w, addr->instance) : NULL;

	*out_status = WIMM_OK;
	if (p != NULL && p->ending_step != 0 && !p->goodbye) {
		/* Lost, only not yet for good: whoever asks for it now wants a new session. */
		peer_down(w, p, p->ending_cause, p->ending_code, "%s", p->ending_text);
		p = NULL;
	}
	if (p != NULL)
		return p;
	if (w->closing) {
		*out_status = WIMM_E_CLOSED;
		return NULL;
	}
	p = self ? w->self_peer : NULL;
	if (p != NULL && p->state != PEER_DOWN)
		return p;
	p = known ? NULL : peer_by_place(w, addr);
	if (p != NULL)
		return p;
	p = peer_new(w, addr);
	if (p == NULL) {
		*out_status = w->peer_free_count == 0 ? WIMM_E_LIMIT : WIMM_E_NOMEM;
		return NULL;
	}
	if (self)
		w->self_peer = p;
	else if (known && peer_index(w, p) != WIMM_OK) {
		peer_free(w, p);
		*out_status = WIMM_E_NOMEM;
		return NULL;
	}
	p->by_place = !known;
	p->place = *addr;
	session_connect(w, p);
	return p;
}

void peer_no_room_text(const struct worker *w)
{
	error_text_set("no room for another peer: %" PRIu32
	               " are known, or lost and not yet told of (setting max_peers)",
	               w->max_peers);
}

static void add_on_worker(struct worker *w, void *arg) ON_WORKER
{
	struct peer_args *a = arg;
	struct peer *p = peer_get(w, a->addr, &a->status);

	if (p == NULL)
		return;
	a->id = peer_id(p);
	if (a->timeout_ns != 0)
		peer_set_timeout(w, peer_real(p), a->timeout_ns);
}

wimm_status wimm_add_peer(struct wimm_engine *engine, const struct wimm_net_addr *addr,
                          const struct wimm_peer_opts *opts, wimm_peer *out)
{
	wimm_status st = engine_check(engine);
	struct wire_addr a;
	struct peer_args args = { .addr = &a };

	if (st != WIMM_OK)
		return st;
	if (addr == NULL || out == NULL)
		return args_null(addr == NULL ? "addr" : "out");
	if (opts != NULL && !ARGS_GOOD(opts, 0))
		return ARGS_REFUSED(opts, "wimm_peer_opts", 0);
	if (opts != NULL && opts->peer_timeout_ms > UINT32_MAX) {
		error_text_set("peer_timeout_ms %" PRIu64 "; allowed are 0..%" PRIu32,
		               opts->peer_timeout_ms, UINT32_MAX);
		return WIMM_E_INVAL;
	}
	if (opts != NULL)
		args.timeout_ns = opts->peer_timeout_ms * CLOCK_NS_PER_MS;
	st = wire_addr_decode(addr, &a);
	if (st != WIMM_OK)
		return st;
	if (strcmp(a.provider, engine->worker.prov->name) != 0) {
		error_text_set("the address is for provider %s, this engine uses %s", a.provider,
		               engine->worker.prov->name);
		return WIMM_E_UNSUPPORTED;
	}
	worker_call(&engine->worker, add_on_worker, &args);
	if (args.status == WIMM_E_LIMIT)
		peer_no_room_text(&engine->worker);
	if (args.status == WIMM_OK)
		*out = args.id;
	return args.status;
}

static void remove_on_worker(struct worker *w, void *arg) ON_WORKER
{
	struct peer_args *a = arg;
	struct peer *p = peer_by_id(w, a->id);

	a->status = WIMM_E_NOT_FOUND;
	if (p == NULL)
		return;
	a->status = WIMM_OK;
	session_goodbye(w, p, WIMM_E_CLOSED, "the peer was removed");
	peer_down(w, p, WIMM_E_CLOSED, 0, "removed by this program");
}

wimm_status wimm_remove_peer(struct wimm_engine *engine, wimm_peer peer)
{
	wimm_status st = engine_check(engine);
	struct peer_args args = { .id = peer };

	if (st != WIMM_OK)
		return st;
	worker_call(&engine->worker, remove_on_worker, &args);
	return args.status;
}

static void error_on_worker(struct worker *w, void *arg)
{
	struct peer_args *a = arg;
	struct peer *p = peer_by_id(w, a->id);

	a->status = WIMM_E_NOT_FOUND;
	if (p == NULL || p->cause == WIMM_OK)
		return;
	a->error->status = p->cause;
	a->error->vendor_code = p->vendor_code;
	memcpy(a->error->text, p->text, sizeof(a->error->text));
	a->status = WIMM_OK;
}

wimm_status wimm_peer_last_error(struct wimm_engine *engine, wimm_peer peer,
                                 struct wimm_error_info *out)
{
	wimm_status st = engine_check(engine);
	struct peer_args args = { .id = peer, .error = out };

	if (st == WIMM_OK && out == NULL)
		st = args_null("out");
	if (st != WIMM_OK)
		return st;
	worker_call(&engine->worker, error_on_worker, &args);
	return args.status;
}

static void info_on_worker(struct worker *w, void *arg)
{
	struct peer_args *a = arg;
	struct wimm_peer_info *info = a->info;
	struct peer *p = peer_by_id(w, a->id);

	a->status = WIMM_E_NOT_FOUND;
	if (p == NULL)
		return;
	info->up = p->state == PEER_UP;
	info->paths_up = p->paths_up;
	info->same_host = same_host_up(p);
	info->progress = (wimm_progress_mode)p->progress_mode;
	memcpy(info->instance, p->addr.instance, sizeof(info->instance));
	(void)snprintf(info->way, sizeof(info->way), "%s", p->way);
	a->status = WIMM_OK;
}

wimm_status wimm_peer_get_info(struct wimm_engine *engine, wimm_peer peer,
                               struct wimm_peer_info *out)
{
	wimm_status st = engine_check(engine);
	struct peer_args args = { .id = peer, .info = out };

	if (st == WIMM_OK && (out == NULL || out->size != sizeof(*out)))
		st = args_refused("wimm_peer_info", out, sizeof(*out), 0);
	if (st != WIMM_OK)
		return st;
	worker_call(&engine->worker, info_on_worker, &args);
	return args.status;
}
