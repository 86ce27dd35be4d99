/* SPDX-License-Identifier: Apache-2.0 */
/* wimm check: does every NIC here reach every NIC over there, are bytes readable when they are
 * counted, and what looks as if it would be slow. */
#include "commands.h"

#include "lib/launch.h"
#include "lib/pair.h"
#include "lib/report.h"
#include "lib/run.h"
#include "lib/util.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOW_MBIT_S  10000u /* a NIC below this is not made for the job */
#define SLOW_SHARE   0.5    /* of what the link could carry */
#define WARNINGS_MAX 8u

enum { KEY_JSON = 0x100, KEY_RAILS };

static const struct argp_option options[] = {
	{ "json", KEY_JSON, NULL, 0, "print one object", 1 },
	{ "rails", KEY_RAILS, NULL, 0,
	  "look only at pairs of equal index, for networks that join nothing else", 1 },
	{ 0 }
};

struct check {
	struct launch launch;
	bool json;
	bool rails;
	char provider[32];
	struct nic_list own, theirs;
	uint32_t pairs, good, warned;
};

struct warnings {
	uint32_t count;
	char text[WARNINGS_MAX][200];
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct check *c = state->input;

	switch (key) {
	case KEY_JSON:
		c->json = true;
		return 0;
	case KEY_RAILS:
		c->rails = true;
		return 0;
	case ARGP_KEY_INIT:
		state->child_inputs[0] = &c->launch;
		return 0;
	case ARGP_KEY_ARG:
		if (c->launch.host != NULL)
			argp_error(state, "\"%s\" is too much: one HOST", arg);
		c->launch.host = arg;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

/* --- warnings --- */

static void warn(struct warnings *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void warn(struct warnings *w, const char *fmt, ...)
{
	va_list args;

	if (w->count == WARNINGS_MAX)
		return;
	va_start(args, fmt);
	(void)vsnprintf(w->text[w->count++], sizeof(w->text[0]), fmt, args);
	va_end(args);
}

static void judge_link(struct warnings *w, const struct nic *n, const char *where)
{
	if (n->link_mbit_s != 0 && n->link_mbit_s < SLOW_MBIT_S)
		warn(w, "slow link: %s %s (%s) has %" PRIu64 " Mbit/s", where, n->name, n->device,
		     n->link_mbit_s);
}

static void judge(struct warnings *w, const struct nic *own, const struct nic *theirs,
                  const struct pair_result *r)
{
	uint64_t link = own->link_mbit_s;

	judge_link(w, own, "NIC");
	judge_link(w, theirs, "target's NIC");
	if (own->link_mbit_s != 0 && theirs->link_mbit_s != 0 &&
	    own->link_mbit_s != theirs->link_mbit_s)
		warn(w, "links of unequal speed: %" PRIu64 " and %" PRIu64 " Mbit/s",
		     own->link_mbit_s, theirs->link_mbit_s);
	if (theirs->link_mbit_s != 0 && (link == 0 || theirs->link_mbit_s < link))
		link = theirs->link_mbit_s;
	if (r->reached && link != 0 && r->gb_s * 8000.0 < SLOW_SHARE * (double)link)
		warn(w, "slow: %.2f GB/s measured, the link has %.2f", r->gb_s,
		     (double)link / 8000.0);
	if (own->mtu_bytes != 0 && theirs->mtu_bytes != 0 && own->mtu_bytes != theirs->mtu_bytes)
		warn(w, "MTU mismatch: %s has %" PRIu64 " bytes, the target's %s %" PRIu64,
		     own->device, own->mtu_bytes, theirs->device, theirs->mtu_bytes);
	if (own->numa_node >= 0 && theirs->numa_node >= 0 && own->numa_node != theirs->numa_node)
		warn(w, "cross-NUMA: %s is on node %d, the target's %s on node %d", own->name,
		     own->numa_node, theirs->name, theirs->numa_node);
}

/* --- printing --- */

static void add_pair(cJSON *pairs, uint32_t i, uint32_t j, const struct pair_result *r,
                     const struct warnings *w)
{
	cJSON *o = cJSON_CreateObject(), *list;

	if (o == NULL || !cJSON_AddItemToArray(pairs, o) ||
	    cJSON_AddNumberToObject(o, "nic", i) == NULL ||
	    cJSON_AddNumberToObject(o, "target_nic", j) == NULL ||
	    cJSON_AddBoolToObject(o, "reached", r->reached) == NULL ||
	    cJSON_AddBoolToObject(o, "visible", r->visible) == NULL ||
	    cJSON_AddStringToObject(o, "reason", r->reason) == NULL ||
	    cJSON_AddStringToObject(o, "way", r->way) == NULL ||
	    cJSON_AddNumberToObject(o, "writes_compared", r->writes) == NULL ||
	    cJSON_AddNumberToObject(o, "us_p50_8_bytes", r->us_p50) == NULL ||
	    cJSON_AddNumberToObject(o, "gb_s", r->gb_s) == NULL)
		die("out of memory");
	list = cJSON_AddArrayToObject(o, "warnings");
	for (uint32_t k = 0; k < w->count; k++)
		if (!cJSON_AddItemToArray(list, cJSON_CreateString(w->text[k])))
			die("out of memory");
}

static void print_pair(const struct check *c, uint32_t i, uint32_t j, const struct pair_result *r,
                       const struct warnings *w)
{
	const char *verdict = !r->reached ? "NOT REACHED" : !r->visible ? "NOT VISIBLE" : "ok";

	printf("%-24s %-24s %-11s", c->own.nic[i].name, c->theirs.nic[j].name, verdict);
	if (r->reached)
		printf(" %4u writes compared, 8 bytes in %.1f us (p50 of 200), %.2f GB/s\n",
		       r->writes, r->us_p50, r->gb_s);
	else
		printf("\n");
	if (r->reason[0] != '\0')
		printf("    %s\n", r->reason);
	for (uint32_t k = 0; k < w->count; k++)
		printf("    warning: %s\n", w->text[k]);
	(void)fflush(stdout);
}

static cJSON *result_json(const struct check *c, cJSON *pairs)
{
	cJSON *o = cJSON_CreateObject();

	if (o == NULL || cJSON_AddStringToObject(o, "command", "check") == NULL ||
	    cJSON_AddStringToObject(o, "provider", c->provider) == NULL ||
	    cJSON_AddStringToObject(o, "target", c->launch.target) == NULL ||
	    !cJSON_AddItemToObject(o, "nics", nics_to_json(&c->own)) ||
	    !cJSON_AddItemToObject(o, "target_nics", nics_to_json(&c->theirs)) ||
	    !cJSON_AddItemToObject(o, "pairs", pairs) ||
	    cJSON_AddBoolToObject(o, "ok", c->good == c->pairs) == NULL)
		die("out of memory");
	return o;
}

/* --- the command --- */

/* Every pair; returns the JSON array of them. */
static cJSON *check_all(struct check *c)
{
	cJSON *pairs = cJSON_CreateArray();
	char way[256] = "";

	for (uint32_t i = 0; i < c->own.count; i++) {
		for (uint32_t j = 0; j < c->theirs.count; j++) {
			struct warnings w = { 0 };
			struct pair_result r;

			if (c->rails && i != j)
				continue;
			pair_check(&c->launch.channel, c->provider, c->own.nic[i].name,
			           c->theirs.nic[j].name, &r);
			judge(&w, &c->own.nic[i], &c->theirs.nic[j], &r);
			c->pairs++;
			c->good += r.reached && r.visible;
			c->warned += w.count != 0;
			if (r.reached)
				(void)snprintf(way, sizeof(way), "%s", r.way);
			add_pair(pairs, i, j, &r, &w);
			if (!c->json)
				print_pair(c, i, j, &r, &w);
		}
	}
	if (!c->json && way[0] != '\0')
		printf("writes that are not pinned to a NIC go by: %s\n", way);
	return pairs;
}

int check_main(int argc, char **argv)
{
	static const struct argp_child children[] = { { &launch_argp, 0, NULL, 10 }, { 0 } };
	static const struct argp argp = {
		options,
		parse,
		"[HOST]",
		"Try every pair of NICs of two sides: is it reached, are the bytes of a write "
		"readable when its immediate is counted, what may be slow.\v"
		"Without HOST it waits for a client; with one it is the client. The exit status "
		"is 1 when a pair fails.",
		children,
		NULL,
		NULL
	};
	struct check *c = must_alloc(1, sizeof(*c));
	cJSON *pairs;
	bool ok = true;

	launch_init(&c->launch);
	/* Each write is pinned to its NIC; what the peers would do otherwise is to be seen, too. */
	(void)setenv("WIMM_SAME_HOST", "auto", 0);
	argp_parse(&argp, argc, argv, 0, NULL, c);
	launch_provider(&c->launch, c->provider, sizeof(c->provider));
	if (launch_connect(&c->launch)) {
		die_tells(&c->launch.channel);
		nics_find(c->provider, launch_nics(&c->launch), &c->own);
		pair_greet(&c->launch.channel, c->provider, &c->theirs);
		pairs = check_all(c);
		ok = c->good == c->pairs;
		die_tells(NULL);
		launch_finish(&c->launch);
		if (c->json)
			report_print_json(result_json(c, pairs));
		else
			cJSON_Delete(pairs);
		if (!c->json)
			printf("%u of %u pairs are good, %u with warnings\n", c->good, c->pairs,
			       c->warned);
	}
	free(c);
	return ok ? 0 : STATUS_FAILED;
}
