/* SPDX-License-Identifier: Apache-2.0 */
/* wimm info: what this machine and this build have. */
#include "commands.h"

#include "lib/about.h"
#include "lib/channel.h"
#include "lib/report.h"
#include "lib/util.h"

#include <argp.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_JSON = 0x100, KEY_SETTINGS };

struct info {
	bool json;
	bool settings;
};

static const struct argp_option options[] = {
	{ "json", KEY_JSON, NULL, 0, "everything as one JSON object", 0 },
	{ "settings", KEY_SETTINGS, NULL, 0, "the settings alone, with range and meaning", 0 },
	{ 0 }
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct info *info = state->input;

	switch (key) {
	case KEY_JSON:
		info->json = true;
		return 0;
	case KEY_SETTINGS:
		info->settings = true;
		return 0;
	case ARGP_KEY_ARG:
		argp_error(state, "\"%s\" is too much", arg);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const cJSON *list_of(const cJSON *object, const char *name)
{
	const cJSON *list = cJSON_GetObjectItemCaseSensitive(object, name);

	if (!cJSON_IsArray(list))
		die("the library's description has no list \"%s\"", name);
	return list;
}

/* A number that may be null. */
static const char *number_text(const cJSON *object, const char *name, const char *null,
                               char out[32])
{
	const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

	if (cJSON_IsNumber(item))
		(void)snprintf(out, 32, "%.0f", item->valuedouble);
	else
		(void)snprintf(out, 32, "%s", null);
	return out;
}

static void print_value(const cJSON *row, const char *name, char *out, size_t out_bytes)
{
	const cJSON *item = cJSON_GetObjectItemCaseSensitive(row, name);

	if (cJSON_IsString(item))
		(void)snprintf(out, out_bytes, "%s",
		               item->valuestring[0] != '\0' ? item->valuestring : "(empty)");
	else
		(void)snprintf(out, out_bytes, "%.0f", member_number(row, name));
}

/* --- settings --- */

static void print_settings(const cJSON *info)
{
	const cJSON *row;

	printf("Settings, from the environment over the file ($WIMM_CONFIG, else /etc/wimm.conf) "
	       "over the default:\n");
	cJSON_ArrayForEach(row, list_of(info, "settings"))
	{
		const char *unit = member_text(row, "unit");
		char value[600];
		char def[600];

		print_value(row, "value", value, sizeof(value));
		print_value(row, "default", def, sizeof(def));
		printf("\n  %s  (%s)\n    %s\n", member_text(row, "name"), member_text(row, "env"),
		       member_text(row, "help"));
		printf("    now %s%s%s from %s; default %s", value, unit[0] != '\0' ? " " : "",
		       unit, member_text(row, "source"), def);
		if (strcmp(member_text(row, "type"), "text") != 0)
			printf("; %.0f to %.0f", member_number(row, "min"),
			       member_number(row, "max"));
		printf("\n");
	}
}

static void print_changed_settings(const cJSON *info)
{
	const cJSON *row;
	uint32_t changed = 0;

	cJSON_ArrayForEach(row, list_of(info, "settings"))
	{
		char value[600];

		if (strcmp(member_text(row, "source"), "default") == 0)
			continue;
		print_value(row, "value", value, sizeof(value));
		printf("  %s = %s (from %s)\n", member_text(row, "name"), value,
		       member_text(row, "source"));
		changed++;
	}
	printf("  %" PRIu32 " of %d differ from the default; wimm info --settings lists all\n",
	       changed, cJSON_GetArraySize(list_of(info, "settings")));
}

/* --- the rest --- */

static void print_nic(const cJSON *nic)
{
	const cJSON *caps = cJSON_GetObjectItemCaseSensitive(nic, "capabilities");
	const cJSON *device = cJSON_GetObjectItemCaseSensitive(nic, "device");
	const cJSON *link = cJSON_GetObjectItemCaseSensitive(nic, "link_bytes_per_s");
	const cJSON *note = cJSON_GetObjectItemCaseSensitive(nic, "note");
	char numa[32];

	if (strcmp(member_text(nic, "status"), "OK") != 0) {
		printf("    %-24s cannot be opened: %s\n", member_text(nic, "nic"),
		       member_text(nic, "error"));
		return;
	}
	printf("    %-24s device %s, NUMA node %s, link ", member_text(nic, "nic"),
	       cJSON_IsString(device) ? device->valuestring : "unknown",
	       number_text(nic, "numa_node", "unknown", numa));
	if (cJSON_IsNumber(link))
		printf("%.1f Gbit/s\n", link->valuedouble * 8e-9);
	else
		printf("speed unknown\n");
	if (cJSON_IsString(note))
		printf("      %s\n", note->valuestring);
	printf("      %s, %s, %s; %.0f writes in flight, longest write %.0f bytes\n",
	       member_bool(caps, "ordered") ? "ordered" : "unordered",
	       member_bool(caps, "identifies_source") ? "tells sources apart" : "no sources",
	       member_bool(caps, "gpu_direct")    ? "GPU direct"
	       : member_bool(caps, "gpu_regions") ? "memory of GPUs that it can register"
	                                          : "host memory",
	       member_number(caps, "post_depth"), member_number(caps, "max_write_bytes"));
}

static void print_providers(const cJSON *info)
{
	const cJSON *same_host = cJSON_GetObjectItemCaseSensitive(info, "same_host");
	const cJSON *provider;
	const cJSON *nic;
	const cJSON *memory;

	printf("\nProviders\n");
	cJSON_ArrayForEach(provider, list_of(info, "providers"))
	{
		printf("  %-8s %-18s %s\n", member_text(provider, "name"),
		       member_text(provider, "state"), member_text(provider, "what"));
		cJSON_ArrayForEach(nic, list_of(provider, "nics")) print_nic(nic);
	}
	printf("\nPeers of this machine\n  %s: %s\n", member_text(same_host, "setting"),
	       member_text(same_host, "meaning"));
	printf("\nMemory\n");
	cJSON_ArrayForEach(memory, list_of(info, "memory"))
		printf("  %-8s %s\n", member_text(memory, "kind"), member_text(memory, "state"));
	cJSON_ArrayForEach(memory, list_of(info, "gpus"))
		printf("  GPU %s: %s, %.0f multiprocessors; NICs behind another switch: %s\n",
		       member_text(memory, "pci"), member_text(memory, "name"),
		       member_number(memory, "sms"), member_text(memory, "flush"));
}

static void print_limits(const cJSON *info)
{
	const cJSON *limit;

	printf("\nLimits\n");
	cJSON_ArrayForEach(limit, list_of(info, "limits"))
	{
		char soft[32];
		char hard[32];

		printf("  %-15s %s, hard limit %s %s: %s\n    %s\n", member_text(limit, "name"),
		       number_text(limit, "soft", "unlimited", soft),
		       number_text(limit, "hard", "unlimited", hard), member_text(limit, "unit"),
		       member_bool(limit, "enough") ? "enough" : "may be too low",
		       member_text(limit, "meaning"));
		if (!member_bool(limit, "enough"))
			printf("    to raise it: %s\n", member_text(limit, "fix"));
	}
}

static void print_all(const cJSON *info)
{
	const cJSON *machine = cJSON_GetObjectItemCaseSensitive(info, "machine");

	printf("wimm %s on %s: %s %s, %s, %.0f CPUs\n", member_text(info, "version"),
	       member_text(machine, "host"), member_text(machine, "system"),
	       member_text(machine, "release"), member_text(machine, "arch"),
	       member_number(machine, "cpus"));
	print_providers(info);
	print_limits(info);
	printf("\nSettings\n");
	print_changed_settings(info);
}

int info_main(int argc, char **argv)
{
	static const struct argp argp = {
		options, parse,
		NULL,    "Print the version, providers, NICs, limits and settings of this machine.",
		NULL,    NULL,
		NULL
	};
	struct info info = { 0 };
	cJSON *about;

	argp_parse(&argp, argc, argv, 0, NULL, &info);
	about = about_load();
	if (info.json) {
		report_print_json(about);
		return 0;
	}
	if (info.settings)
		print_settings(about);
	else
		print_all(about);
	cJSON_Delete(about);
	return 0;
}
