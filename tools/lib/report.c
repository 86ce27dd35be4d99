/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/report.h"

#include "lib/util.h"

#include <inttypes.h>
#include <stdio.h>

static void number(cJSON *object, const char *name, double value)
{
	if (cJSON_AddNumberToObject(object, name, value) == NULL)
		die("out of memory");
}

static void text(cJSON *object, const char *name, const char *value)
{
	if (cJSON_AddStringToObject(object, name, value) == NULL)
		die("out of memory");
}

static void boolean(cJSON *object, const char *name, bool value)
{
	if (cJSON_AddBoolToObject(object, name, value) == NULL)
		die("out of memory");
}

static cJSON *child(cJSON *object, const char *name)
{
	cJSON *c = cJSON_AddObjectToObject(object, name);

	if (c == NULL)
		die("out of memory");
	return c;
}

static double cpu_per_gb(const struct run_result *r)
{
	double cpu = r->client_cpu_s + r->target_cpu_s;

	return r->bytes != 0 ? cpu / ((double)r->bytes * 1e-9) : 0;
}

static void add_latency(cJSON *object, const struct run_result *r)
{
	cJSON *lat = child(object, "lat_us");

	number(lat, "p50", hist_us(&r->hist, 0.5));
	number(lat, "p90", hist_us(&r->hist, 0.9));
	number(lat, "p99", hist_us(&r->hist, 0.99));
	number(lat, "p99_9", hist_us(&r->hist, 0.999));
	number(lat, "min", r->hist.count != 0 ? (double)r->hist.min_ns * 1e-3 : 0);
	number(lat, "avg", hist_mean_us(&r->hist));
	number(lat, "max", (double)r->hist.max_ns * 1e-3);
	number(lat, "samples", (double)r->hist.count);
}

static void add_validation(cJSON *object, const struct run_result *r)
{
	char left[64] = "";
	cJSON *v;

	if (r->left_out != 0)
		(void)snprintf(left, sizeof(left), "%" PRIu64 " iterations of %s", r->left_out,
		               r->spec.both_ways ? "each writer" : "the client");
	boolean(object, "validated", r->validated);
	number(object, "bytes_checked", (double)r->bytes_checked);
	v = child(object, "validation");
	number(v, "iterations", (double)r->check_iters);
	text(v, "left_out", left);
	boolean(v, "separate_pass", true);
	boolean(v, "poisoned_before", r->spec.op != OP_SEND);
	boolean(v, "guards_and_surplus_immediates_checked", r->spec.op != OP_SEND);
}

static void add_figures(cJSON *object, const struct run_result *r)
{
	cJSON *cpu;

	number(object, "bytes", (double)r->bytes);
	number(object, "seconds", r->seconds);
	number(object, "bandwidth_gb_s", r->bandwidth_gb_s);
	number(object, "messages_per_s", r->messages_per_s);
	add_latency(object, r);
	number(object, "cpu_s_per_gb", cpu_per_gb(r));
	cpu = child(object, "cpu_s");
	number(cpu, "client", r->client_cpu_s);
	number(cpu, "target", r->target_cpu_s);
	boolean(cpu, "one_process", r->cpu_shared);
}

cJSON *report_json(const struct run_result *r, const char *target)
{
	cJSON *object = cJSON_CreateObject();

	if (object == NULL)
		die("out of memory");
	text(object, "op", spec_op_name(r->spec.op));
	text(object, "provider", r->spec.provider);
	number(object, "nics", r->nics);
	number(object, "target_nics", r->target_nics);
	text(object, "target", target);
	number(object, "block_bytes", (double)r->spec.block_bytes);
	number(object, "batch", (double)r->spec.batch);
	number(object, "depth", (double)r->spec.depth);
	number(object, "iters", (double)r->iters);
	number(object, "warmup", (double)r->spec.warmup);
	boolean(object, "both_ways", r->spec.both_ways);
	text(object, "imm", r->spec.op == OP_SEND ? "none" : r->spec.once ? "once" : "page");
	text(object, "done_means", r->spec.confirmed ? "confirmed" : "acked");
	text(object, "progress", r->spec.caller ? "caller" : "threads");
	add_figures(object, r);
	add_validation(object, r);
	text(object, "bandwidth_is",
	     "payload bytes / client's time from the first submission to the notice that the "
	     "receiver's counter has fired");
	text(object, "lat_is",
	     "client's time from the submission of an iteration until it is done");
	text(object, "version", WIMM_VERSION_STRING);
	return object;
}

void report_print_json(cJSON *object)
{
	char *printed = cJSON_PrintUnformatted(object);

	if (printed == NULL)
		die("out of memory");
	printf("%s\n", printed);
	cJSON_free(printed);
	cJSON_Delete(object);
}

void report_heading(bool gbits)
{
	printf("%-8s %10s %7s %9s %12s %12s %9s %9s %9s  %s\n", "op", "block", "batch", "iters",
	       gbits ? "BW Gbit/s" : "BW GB/s", "msg/s", "p50 us", "p99 us", "CPU s/GB",
	       "compared");
}

void report_row(const struct run_result *r, bool gbits)
{
	char size[24];
	char checked[80] = "no";

	if (r->validated)
		(void)snprintf(checked, sizeof(checked), "%" PRIu64 " bytes", r->bytes_checked);
	else if (r->check_iters != 0)
		(void)snprintf(checked, sizeof(checked),
		               "in part: %" PRIu64 " bytes, %" PRIu64 " iterations not",
		               r->bytes_checked, r->left_out);
	printf("%-8s %10s %7" PRIu64 " %9" PRIu64 " %12.3f %12.0f %9.1f %9.1f %9.3f  %s\n",
	       spec_op_name(r->spec.op), size_text(r->spec.block_bytes, size), r->spec.batch,
	       r->iters, r->bandwidth_gb_s * (gbits ? 8 : 1), r->messages_per_s,
	       hist_us(&r->hist, 0.5), hist_us(&r->hist, 0.99), cpu_per_gb(r), checked);
	(void)fflush(stdout);
}
