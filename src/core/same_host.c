/* SPDX-License-Identifier: Apache-2.0 */
#include "core/same_host.h"

#include "base/config.h"
#include "base/log.h"
#include "core/engine.h"
#include "core/error_text.h"
#include "core/session.h"
#include "plat/clock.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static wimm_status read_rule(uint8_t *out)
{
	static const char *const names[] = {
		[SAME_HOST_AUTO] = "auto",
		[SAME_HOST_OFF] = "off",
		[SAME_HOST_REQUIRE] = "require",
	};
	char text[CONFIG_TEXT_BYTES];

	config_get_text(CFG_SAME_HOST, text);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (strcmp(names[i], text) == 0) {
			*out = (uint8_t)i;
			return WIMM_OK;
		}
	}
	error_text_set("setting same_host is \"%.60s\": auto, off or require", text);
	return WIMM_E_PARSE;
}

wimm_status same_host_open(struct wimm_engine *engine)
{
	struct worker *w = &engine->worker;
	struct nic *nic = &w->nic[w->nic_count];
	struct prov_error error = { 0 };
	struct prov_args args = {
		.nic = "any",
		.nic_index = w->nic_count,
		.instance = engine->self.instance,
		.peer_timeout_ms = (uint32_t)(w->peer_timeout_ns / CLOCK_NS_PER_MS),
		.max_regions = engine->regions.max,
		.beside = true,
	};
	wimm_status st = read_rule(&w->same_host);

	if (st != WIMM_OK)
		return st;
	for (uint32_t i = 0; i < w->nic_count; i++)
		if (!w->nic[i].caps.leaves_machine) /* it has no need of another way */
			w->same_host = SAME_HOST_OFF;
	if (w->same_host == SAME_HOST_OFF)
		return WIMM_OK;
	nic->ops = prov_same_host();
	st = nic->ops->open(&args, &nic->caps, &nic->dev, &error);
	if (st != WIMM_OK && w->same_host == SAME_HOST_REQUIRE) {
		error_text_set("setting same_host is require, and there is no device for it: %s",
		               error.text);
		return st;
	}
	if (st != WIMM_OK) {
		LOG_WARN("peers of this machine are reached through NICs: %s", error.text);
		return WIMM_OK;
	}
	nic->ops->addr(nic->dev, &nic->addr);
	w->dev_count = w->nic_count + 1;
	return WIMM_OK;
}

/* --- hello --- */

void same_host_say(const struct worker *w, struct wire_msg *hello)
{
	const struct prov_addr *addr = &w->nic[w->nic_count].addr;

	if (!same_host_there(w))
		return;
	hello->u.hello.path_count = 1;
	hello->u.hello.offer[0].len_bytes = addr->len_bytes;
	memcpy(hello->u.hello.offer[0].bytes, addr->bytes, addr->len_bytes);
}

static bool take_addr(struct peer *p, const uint8_t *bytes, uint32_t len_bytes)
{
	if (len_bytes == 0 || len_bytes > PROV_ADDR_MAX_BYTES)
		return false;
	memset(&p->host_addr, 0, sizeof(p->host_addr));
	p->host_addr.len_bytes = len_bytes;
	memcpy(p->host_addr.bytes, bytes, len_bytes);
	return true;
}

bool same_host_asked(const struct worker *w, struct peer *p, const struct wire_msg *hello)
{
	const struct prov_offer *offer = &hello->u.hello.offer[0];

	return same_host_there(w) && hello->u.hello.path_count == 1 &&
	       take_addr(p, offer->bytes, offer->len_bytes);
}

/* u8 length, address, and then the offer. */
void same_host_wrap(const struct worker *w, struct prov_offer *offer)
{
	const struct prov_addr *addr = &w->nic[w->nic_count].addr;
	struct prov_offer whole = { 0 };
	uint32_t head_bytes = 1 + addr->len_bytes;

	if (offer->len_bytes == 0)
		return; /* there is no path */
	if (offer->len_bytes > PROV_OFFER_BYTES - head_bytes) {
		offer->len_bytes = 0;
		return;
	}
	whole.bytes[0] = (uint8_t)addr->len_bytes;
	memcpy(whole.bytes + 1, addr->bytes, addr->len_bytes);
	memcpy(whole.bytes + head_bytes, offer->bytes, offer->len_bytes);
	whole.len_bytes = head_bytes + offer->len_bytes;
	*offer = whole;
}

bool same_host_unwrap(struct peer *p, struct prov_offer *offer)
{
	struct prov_offer rest = { 0 };
	uint32_t head_bytes = 1u + offer->bytes[0];

	if (offer->len_bytes <= head_bytes ||
	    !take_addr(p, offer->bytes + 1, offer->bytes[0]))
		return false;
	rest.len_bytes = offer->len_bytes - head_bytes;
	memcpy(rest.bytes, offer->bytes + head_bytes, rest.len_bytes);
	*offer = rest;
	return true;
}

/* --- what is told --- */

void same_host_way(struct peer *p, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	(void)vsnprintf(p->way, sizeof(p->way), fmt, args);
	va_end(args);
}

void same_host_plan(const struct worker *w, struct peer *p)
{
	if (p->host_path != NO_HOST_PATH)
		same_host_way(p, "NICs: the probe of this machine's memory has not ended");
	else if (same_host_there(w))
		same_host_way(p, "NICs: it asks for no other way");
	else if (w->same_host == SAME_HOST_OFF && w->nic[0].caps.leaves_machine)
		same_host_way(p, "NICs: setting same_host is off");
	else if (w->nic[0].caps.leaves_machine)
		same_host_way(p, "NICs: this machine's memory has no device");
	else
		same_host_way(p, "NICs");
}

void same_host_path_up(struct worker *w, struct peer *p, const char *text)
{
	same_host_way(p, "this machine's memory%s%s",
	              text != NULL && text[0] != '\0' ? ": " : "", text != NULL ? text : "");
	LOG_INFO("peer %" PRIx64 ": %s", peer_id(p), p->way);
	if (p->state == PEER_UP)
		post_peer_room(w, p); /* what has not begun goes this way */
}

void same_host_path_lost(struct peer *p, const char *text)
{
	same_host_way(p, "NICs, since the way through this machine's memory failed: %s", text);
	LOG_INFO("peer %" PRIx64 ": %s", peer_id(p), p->way);
}

bool same_host_suffices(const struct worker *w, const struct peer *p)
{
	return w->same_host != SAME_HOST_REQUIRE || same_host_up(p);
}
