/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/spec.h"

#include "lib/channel.h"
#include "lib/util.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAX_BATCH      (1u << 20)
#define MAX_DEPTH      1024u
#define MAX_IN_FLIGHT  8192u /* half of what an engine takes by default */
#define MAX_BUFFER     (UINT64_C(1) << 38)
#define MAX_ITERS      (UINT64_C(1) << 40)
#define MAX_SECONDS    86400.0
#define MAX_SEND_BYTES (1u << 30)

static const char *const op_names[OP_COUNT] = { "write", "paged", "scatter", "barrier", "send" };

const char *spec_op_name(enum spec_op op)
{
	return op_names[op];
}

bool spec_op_find(const char *name, enum spec_op *out)
{
	for (uint32_t i = 0; i < OP_COUNT; i++) {
		if (strcmp(op_names[i], name) == 0) {
			*out = (enum spec_op)i;
			return true;
		}
	}
	return false;
}

uint64_t spec_iter_bytes(const struct spec *spec)
{
	return spec->block_bytes * spec->batch;
}

uint64_t spec_iter_imms(const struct spec *spec)
{
	return spec->op == OP_PAGED && spec->once ? 1 : spec->batch;
}

uint64_t spec_slots(const struct spec *spec)
{
	uint64_t bytes = spec_iter_bytes(spec);

	return bytes == 0 ? 1u << 20 : spec->buffer_bytes / bytes;
}

/* Operations of the engine that an iteration takes. */
static uint64_t ops_an_iter(const struct spec *spec)
{
	return spec->op == OP_WRITE || spec->op == OP_SEND ? spec->batch : 1;
}

static const char *range_fault(const struct spec *s)
{
	if (s->batch == 0 || s->batch > MAX_BATCH)
		return "--batch: 1 to 1048576";
	if (s->depth == 0 || s->depth > MAX_DEPTH)
		return "--depth (-t): 1 to 1024";
	if (ops_an_iter(s) * s->depth > MAX_IN_FLIGHT)
		return "--batch times --depth: at most 8192 operations in flight";
	if (s->iters == 0 || s->iters > MAX_ITERS || s->warmup > MAX_ITERS ||
	    s->check_iters > MAX_ITERS)
		return "--iters (-n): 1 to 2^40";
	if (!(s->seconds >= 0 && s->seconds <= MAX_SECONDS))
		return "--duration (-D): up to 86400 s";
	return NULL;
}

const char *spec_fault(const struct spec *s)
{
	const char *fault = range_fault(s);

	if (fault != NULL)
		return fault;
	if (s->buffer_bytes == 0 || s->buffer_bytes > MAX_BUFFER)
		return "--buffer: 1 to 256G";
	if (s->op == OP_BARRIER && s->block_bytes != 0)
		return "--size (-s): a barrier carries no bytes";
	if (s->block_bytes > s->buffer_bytes / s->batch)
		return "--size (-s) times --batch: more than --buffer holds";
	if (s->op == OP_SEND && s->block_bytes > MAX_SEND_BYTES)
		return "--size (-s): a message has at most 1G";
	if (s->block_bytes == 0 && s->op == OP_PAGED)
		return "--size (-s): a page has at least one byte";
	if (s->once && s->op != OP_PAGED)
		return "--imm once: for paged writes only";
	if (s->confirmed && s->op == OP_SEND)
		return "--confirmed: messages are confirmed as they are";
	if (s->block_bytes != 0 && s->buffer_bytes / s->block_bytes > UINT32_MAX)
		return "--buffer: more than 2^32 blocks";
	return NULL;
}

static void add_number(cJSON *object, const char *name, double value)
{
	if (cJSON_AddNumberToObject(object, name, value) == NULL)
		die("out of memory");
}

static void add_bool(cJSON *object, const char *name, bool value)
{
	if (cJSON_AddBoolToObject(object, name, value) == NULL)
		die("out of memory");
}

cJSON *spec_to_json(const struct spec *s)
{
	cJSON *object = cJSON_CreateObject();

	if (object == NULL || cJSON_AddStringToObject(object, "op", op_names[s->op]) == NULL ||
	    cJSON_AddStringToObject(object, "provider", s->provider) == NULL)
		die("out of memory");
	add_number(object, "block_bytes", (double)s->block_bytes);
	add_number(object, "batch", (double)s->batch);
	add_number(object, "iters", (double)s->iters);
	add_number(object, "warmup", (double)s->warmup);
	add_number(object, "check_iters", (double)s->check_iters);
	add_number(object, "depth", (double)s->depth);
	add_number(object, "buffer_bytes", (double)s->buffer_bytes);
	add_number(object, "seed", (double)s->seed);
	add_number(object, "seconds", s->seconds);
	add_bool(object, "both_ways", s->both_ways);
	add_bool(object, "confirmed", s->confirmed);
	add_bool(object, "once", s->once);
	add_bool(object, "shuffle", s->shuffle);
	add_bool(object, "caller", s->caller);
	return object;
}

void spec_from_json(const cJSON *object, struct spec *out)
{
	const char *op = member_text(object, "op");
	const char *provider = member_text(object, "provider");
	const char *fault;

	*out = (struct spec){ 0 };
	if (!spec_op_find(op, &out->op))
		die("the client asks for operation \"%s\", which this version does not have", op);
	if (strlen(provider) >= sizeof(out->provider))
		die("the client asks for a provider with a name of %zu bytes", strlen(provider));
	(void)snprintf(out->provider, sizeof(out->provider), "%s", provider);
	out->block_bytes = member_u64(object, "block_bytes", 0, MAX_BUFFER);
	out->batch = member_u64(object, "batch", 1, MAX_BATCH);
	out->iters = member_u64(object, "iters", 1, MAX_ITERS);
	out->warmup = member_u64(object, "warmup", 0, MAX_ITERS);
	out->check_iters = member_u64(object, "check_iters", 0, MAX_ITERS);
	out->depth = member_u64(object, "depth", 1, MAX_DEPTH);
	out->buffer_bytes = member_u64(object, "buffer_bytes", 1, MAX_BUFFER);
	out->seed = member_u64(object, "seed", 0, UINT32_MAX);
	out->seconds = member_number(object, "seconds");
	out->both_ways = member_bool(object, "both_ways");
	out->confirmed = member_bool(object, "confirmed");
	out->once = member_bool(object, "once");
	out->shuffle = member_bool(object, "shuffle");
	out->caller = member_bool(object, "caller");
	fault = spec_fault(out);
	if (fault != NULL)
		die("the client asks for what is not allowed: %s", fault);
}
