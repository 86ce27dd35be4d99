/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/run.h"

#include "lib/pair.h"
#include "lib/util.h"

#include <stdlib.h>
#include <string.h>
#include <wimm/status.h>

#define HELLO_WAIT_S 60u
#define FIRST_IMM    0xfffffff0u /* the values of the passes go through both ends of the range */
#define PROTOCOL     1

static struct runner *runner_new(bool shares_process)
{
	struct runner *r = must_alloc(1, sizeof(*r));

	r->shares_process = shares_process;
	return r;
}

/* --- client --- */

static void say_hello(struct channel *channel, const struct spec *spec)
{
	cJSON *m = channel_message("hello");

	if (cJSON_AddNumberToObject(m, "protocol", PROTOCOL) == NULL ||
	    cJSON_AddStringToObject(m, "version", WIMM_VERSION_STRING) == NULL ||
	    !cJSON_AddItemToObject(m, "spec", spec_to_json(spec)))
		die("out of memory");
	channel_send(channel, m);
}

/* Every iteration of the validating passes is compared; one pass holds as many as fit into the
 * buffer side by side. `timed`: iterations of the writer that made more of them. */
static void validate(struct runner *r, uint32_t imm, uint64_t timed, struct run_result *out)
{
	uint64_t slots = spec_slots(r->spec);
	uint64_t wanted = r->spec->check_all ? timed : r->spec->check_iters;
	struct pass_result pr;

	for (uint64_t round = 0; out->check_iters < wanted; round++) {
		uint64_t left = wanted - out->check_iters;
		struct pass pass = { .kind = PASS_CHECK,
			             .imm = imm++,
			             .iters = left < slots ? left : slots,
			             .round = round };

		pass_lead(r, &pass, &pr);
		out->check_iters += pass.iters;
		out->bytes_checked += pr.bytes_checked;
	}
	out->left_out = timed > out->check_iters ? timed - out->check_iters : 0;
	out->validated = out->left_out == 0;
}

static void fill_result(struct runner *r, const struct pass_result *pr, struct run_result *out)
{
	const struct spec *spec = r->spec;

	out->iters = pr->iters + pr->target_iters;
	out->messages = out->iters * spec->batch;
	out->bytes = out->iters * spec_iter_bytes(spec);
	out->seconds = pr->seconds;
	out->bandwidth_gb_s = (double)out->bytes / pr->seconds * 1e-9;
	out->messages_per_s = (double)out->messages / pr->seconds;
	out->client_cpu_s = pr->client_cpu_s;
	out->target_cpu_s = pr->target_cpu_s;
	out->hist = r->load.hist;
}

void run_client(struct channel *channel, const struct spec *spec, const char *nics,
                bool shares_process, struct run_result *out)
{
	struct runner *r = runner_new(shares_process);
	struct pass pass = { .kind = PASS_WARMUP, .imm = FIRST_IMM, .iters = spec->warmup };
	struct pass_result pr;

	memset(out, 0, sizeof(*out));
	out->spec = *spec;
	out->cpu_shared = shares_process;
	die_tells(channel);
	say_hello(channel, spec);
	runner_open(r, spec, nics, channel, true);
	out->nics = r->side.nics;
	out->target_nics = r->side.remote_nics;
	pass_lead(r, &pass, &pr);
	pass = (struct pass){ .kind = PASS_TIMED,
		              .imm = FIRST_IMM + 1,
		              .iters = spec->seconds > 0 ? UINT64_MAX : spec->iters };
	pass_lead(r, &pass, &pr);
	fill_result(r, &pr, out);
	validate(r, FIRST_IMM + 2, pr.iters > pr.target_iters ? pr.iters : pr.target_iters, out);
	channel_send(channel, channel_message("done"));
	cJSON_Delete(runner_recv(r, "done"));
	runner_close(r);
	free(r);
	die_tells(NULL);
}

void run_goodbye(struct channel *channel)
{
	channel_send(channel, channel_message("bye"));
}

/* --- target --- */

static void hear_hello(const cJSON *m, const char *provider, struct spec *spec)
{
	const cJSON *wanted = cJSON_GetObjectItemCaseSensitive(m, "spec");

	if (member_u64(m, "protocol", 0, UINT32_MAX) != PROTOCOL)
		die("the client is wimm %s, this is %s: use the same version on both sides",
		    member_text(m, "version"), WIMM_VERSION_STRING);
	if (!cJSON_IsObject(wanted))
		die("the client's hello has no \"spec\"");
	spec_from_json(wanted, spec);
	if (provider != NULL && strcmp(provider, spec->provider) != 0)
		die("the client asks for provider %s, this side was started with --provider %s",
		    spec->provider, provider);
}

static void serve(struct channel *channel, const struct spec *spec, const char *nics,
                  bool shares_process)
{
	struct runner *r = runner_new(shares_process);

	runner_open(r, spec, nics, channel, false);
	for (;;) {
		cJSON *m = runner_recv(r, NULL);

		if (m == NULL)
			die("the client has gone in mid-run");
		if (strcmp(member_text(m, "do"), "pass") != 0) {
			cJSON_Delete(m);
			break;
		}
		pass_follow(r, m);
		cJSON_Delete(m);
	}
	channel_send(channel, channel_message("done"));
	runner_close(r);
	free(r);
}

void run_target(struct channel *channel, const char *provider, const char *nics,
                bool shares_process)
{
	die_tells(channel);
	for (;;) {
		cJSON *m = channel_recv_any(channel, HELLO_WAIT_S);
		bool hello = m != NULL && strcmp(member_text(m, "do"), "hello") == 0;
		struct spec spec;

		if (hello)
			hear_hello(m, provider, &spec);
		else if (m != NULL && strcmp(member_text(m, "do"), "check") == 0)
			pair_serve(channel, m, provider, nics);
		cJSON_Delete(m);
		if (!hello)
			break;
		serve(channel, &spec, nics, shares_process);
	}
	die_tells(NULL);
}
