/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/verbs/nic.h"

#include "base/config.h"
#include "base/log.h"
#include "prov/verbs/addr.h"
#include "prov/verbs/gid.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GIDS_MAX = 256 }; /* an address vector has 8 bits for the index */

struct spec {
	char device[64]; /* "": any */
	uint32_t port;   /* 0: the first active one */
	int gid_index;   /* -1: chosen */
};

static wimm_status say(struct prov_error *error, wimm_status st, int code, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

static wimm_status say(struct prov_error *error, wimm_status st, int code, const char *fmt, ...)
{
	va_list args;

	error->vendor_code = (uint32_t)code;
	va_start(args, fmt);
	(void)vsnprintf(error->text, sizeof(error->text), fmt, args);
	va_end(args);
	return st;
}

static bool read_uint(const char *text, char stop, uint32_t max, uint32_t *out, const char **end)
{
	char *after;
	unsigned long v;

	if (*text < '0' || *text > '9')
		return false;
	v = strtoul(text, &after, 10);
	if ((*after != '\0' && *after != stop) || v > max)
		return false;
	*out = (uint32_t)v;
	*end = after;
	return true;
}

static bool parse_spec(const char *text, struct spec *out)
{
	size_t len = strcspn(text, ":/");
	uint32_t number;

	*out = (struct spec){ .gid_index = (int)config_get_i64(CFG_VERBS_GID_INDEX) };
	if (len >= sizeof(out->device))
		return false;
	memcpy(out->device, text, len);
	text += len;
	if (*text == ':') {
		if (!read_uint(text + 1, '/', 255, &out->port, &text) || out->port == 0)
			return false;
	}
	if (*text == '/') {
		if (!read_uint(text + 1, '\0', GIDS_MAX - 1, &number, &text))
			return false;
		out->gid_index = (int)number;
	}
	return *text == '\0';
}

/* --- what the system knows --- */

static bool read_line(const char *path, char *out, size_t out_bytes)
{
	FILE *file = fopen(path, "re");
	bool ok;

	if (!file)
		return false;
	ok = fgets(out, (int)out_bytes, file) != NULL;
	(void)fclose(file);
	if (ok)
		out[strcspn(out, "\n")] = '\0';
	return ok;
}

static int numa_of(const char *device)
{
	char path[160];
	char line[32];

	(void)snprintf(path, sizeof(path), "/sys/class/infiniband/%s/device/numa_node", device);
	return read_line(path, line, sizeof(line)) ? (int)strtol(line, NULL, 10) : -1;
}

static uint64_t speed_of(const struct ibv_port_attr *p)
{
	static const struct {
		uint8_t code;
		uint32_t mbit_per_s; /* a lane */
	} speeds[] = {
		{ 1, 2500 },   { 2, 5000 },   { 4, 10000 },  { 8, 10000 },
		{ 16, 14000 }, { 32, 25000 }, { 64, 50000 }, { 128, 100000 },
	};
	static const struct {
		uint8_t code;
		uint32_t lanes;
	} widths[] = { { 1, 1 }, { 2, 4 }, { 4, 8 }, { 8, 12 }, { 16, 2 } };
	uint64_t mbit_per_s = 0;

	for (size_t i = 0; i < sizeof(speeds) / sizeof(speeds[0]); i++) {
		if (speeds[i].code == p->active_speed)
			mbit_per_s = speeds[i].mbit_per_s;
	}
	for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++) {
		if (widths[i].code == p->active_width)
			return mbit_per_s * widths[i].lanes * 125000;
	}
	return 0;
}

/* --- GIDs --- */

static uint32_t gid_type_of(const struct verbs_nic *nic, int index)
{
	char path[192];
	char line[32];

	if (!nic->ethernet)
		return IBV_GID_TYPE_IB;
	(void)snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/%u/gid_attrs/types/%d",
	               nic->device, nic->port, index);
	if (read_line(path, line, sizeof(line)) && strcmp(line, "RoCE v2") == 0)
		return IBV_GID_TYPE_ROCE_V2;
	return IBV_GID_TYPE_ROCE_V1;
}

static size_t read_gids(const struct verbs_nic *nic, struct ibv_gid_entry *out)
{
	size_t count = 0;

	if (nic->lib->query_gid_table) {
		ssize_t n = nic->lib->query_gid_table(nic->ctx, out, GIDS_MAX, 0, sizeof(*out));

		if (n >= 0)
			return (size_t)n;
	}
	for (int i = 0; i < nic->port_attr.gid_tbl_len && count < GIDS_MAX; i++) {
		struct ibv_gid_entry e = { .gid_index = (uint32_t)i, .port_num = nic->port };

		if (nic->lib->query_gid(nic->ctx, nic->port, i, &e.gid) != 0 ||
		    verbs_gid_is_zero(e.gid.raw))
			continue;
		e.gid_type = gid_type_of(nic, i);
		out[count++] = e;
	}
	return count;
}

static wimm_status choose_gid(struct verbs_nic *nic, int wanted, struct prov_error *error)
{
	struct ibv_gid_entry entries[GIDS_MAX];
	size_t count = read_gids(nic, entries);
	const struct ibv_gid_entry *e =
		verbs_gid_choose(entries, count, nic->port, nic->ethernet, wanted);
	char text[VERBS_GID_TEXT_BYTES];

	if (!e && wanted >= 0)
		return say(error, WIMM_E_NOT_FOUND, 0,
		           "verbs: %s has no GID at index %d, %zu entries are set (ibv_devinfo -v "
		           "lists them); change verbs_gid_index or the NIC's name",
		           nic->name, wanted, count);
	if (!e)
		return say(error, WIMM_E_NOT_FOUND, 0,
		           "verbs: %s has no GID: give its network interface an address and set it "
		           "up",
		           nic->name);
	nic->gid = *e;
	verbs_gid_text(e->gid.raw, text);
	LOG_INFO("verbs: %s speaks from GID %u, %s (%s)", nic->name, e->gid_index, text,
	         verbs_gid_kind(e, nic->ethernet));
	return WIMM_OK;
}

bool verbs_nic_gid_stands(const struct verbs_nic *nic)
{
	union ibv_gid now;

	return nic->lib->query_gid(nic->ctx, nic->port, (int)nic->gid.gid_index, &now) == 0 &&
	       memcmp(now.raw, nic->gid.gid.raw, sizeof(now.raw)) == 0;
}

/* --- ports --- */

static const char *port_state_text(enum ibv_port_state state)
{
	static const char *const texts[] = { "unknown", "down",   "initialising",
		                             "armed",   "active", "active, deferred" };

	return (unsigned)state < sizeof(texts) / sizeof(texts[0]) ? texts[state] : "unknown";
}

static wimm_status choose_mtu(struct verbs_nic *nic, struct prov_error *error)
{
	uint64_t wanted = config_get_u64(CFG_VERBS_MTU);
	uint32_t active = verbs_mtu_bytes((uint8_t)nic->port_attr.active_mtu);

	nic->mtu = (uint8_t)nic->port_attr.active_mtu;
	if (wanted == 0 && active != 0)
		return WIMM_OK;
	nic->mtu = verbs_mtu_of_bytes(wanted);
	if (nic->mtu != 0 && wanted <= active)
		return WIMM_OK;
	return say(
		error, WIMM_E_LIMIT, 0,
		"verbs: MTU of %" PRIu64 " wanted (setting verbs_mtu), %s takes %u: 256, 512, "
		"1024, 2048 or 4096 up to that; a larger one needs a larger MTU of the interface",
		wanted, nic->name, active);
}

static wimm_status use_port(struct verbs_nic *nic, const struct spec *spec,
                            struct prov_error *error)
{
	int code = verbs_lib_query_port(nic->lib, nic->ctx, nic->port, &nic->port_attr);
	wimm_status st;

	(void)snprintf(nic->name, sizeof(nic->name), "%s port %u", nic->device, nic->port);
	if (code != 0)
		return say(error, WIMM_E_NOT_FOUND, code,
		           "verbs: %s cannot be asked: %s; it has "
		           "%u ports",
		           nic->name, strerror(code), nic->attr.phys_port_cnt);
	if (nic->port_attr.state != IBV_PORT_ACTIVE)
		return say(error, WIMM_E_NIC_LOST, 0,
		           "verbs: %s is %s: check the cable, and that its interface is up",
		           nic->name, port_state_text(nic->port_attr.state));
	nic->ethernet = nic->port_attr.link_layer == IBV_LINK_LAYER_ETHERNET;
	st = choose_mtu(nic, error);
	if (st == WIMM_OK)
		st = choose_gid(nic, spec->gid_index, error);
	nic->numa_node = numa_of(nic->device);
	nic->link_bytes_per_s = speed_of(&nic->port_attr);
	return st;
}

static wimm_status use_device(struct verbs_nic *nic, struct ibv_device *device,
                              const struct spec *spec, struct prov_error *error)
{
	wimm_status st = WIMM_E_NOT_FOUND;
	uint32_t first = spec->port != 0 ? spec->port : 1;
	uint32_t last;
	int code;

	(void)snprintf(nic->device, sizeof(nic->device), "%s", nic->lib->get_device_name(device));
	nic->ctx = nic->lib->open_device(device);
	if (!nic->ctx)
		return say(error, WIMM_E_SYSTEM, errno,
		           "verbs: %s cannot be opened: %s; check the rights of /dev/infiniband",
		           nic->device, strerror(errno));
	code = nic->lib->query_device(nic->ctx, &nic->attr);
	if (code != 0) {
		st = say(error, WIMM_E_SYSTEM, code, "verbs: %s cannot be asked: %s", nic->device,
		         strerror(code));
		goto undo_ctx;
	}
	last = spec->port != 0 ? spec->port : nic->attr.phys_port_cnt;
	for (uint32_t port = first; port <= last && st != WIMM_OK; port++) {
		nic->port = (uint8_t)port;
		st = use_port(nic, spec, error);
	}
	if (st == WIMM_OK)
		return WIMM_OK;
undo_ctx:
	(void)nic->lib->close_device(nic->ctx);
	nic->ctx = NULL;
	return st;
}

wimm_status verbs_nic_open(const char *text, struct verbs_nic *out, struct prov_error *error)
{
	struct verbs_nic nic = { .numa_node = -1 };
	struct ibv_device **list;
	wimm_status st = WIMM_E_NOT_FOUND;
	struct spec spec;
	int count = 0;
	bool seen = false;

	*error = (struct prov_error){ 0 };
	if (!parse_spec(text, &spec))
		return say(error, WIMM_E_PARSE, 0,
		           "verbs: \"%.60s\" is not of the form DEVICE, DEVICE:PORT or "
		           "DEVICE:PORT/GID_INDEX",
		           text);
	nic.lib = verbs_lib_get(error->text, sizeof(error->text));
	if (!nic.lib)
		return WIMM_E_UNSUPPORTED;
	list = nic.lib->get_device_list(&count);
	for (int i = 0; list && i < count && st != WIMM_OK; i++) {
		if (spec.device[0] != '\0' &&
		    strcmp(spec.device, nic.lib->get_device_name(list[i])) != 0)
			continue;
		seen = true;
		st = use_device(&nic, list[i], &spec, error);
	}
	if (list)
		nic.lib->free_device_list(list);
	if (st == WIMM_OK)
		*out = nic;
	else if (!seen)
		(void)say(error, st, 0,
		          "verbs: no RDMA device \"%s\": the system has %d "
		          "(ibv_devinfo lists them)%s",
		          spec.device, count, count == 0 ? "; load its driver" : "");
	return st;
}

void verbs_nic_close(struct verbs_nic *nic)
{
	if (nic->ctx)
		(void)nic->lib->close_device(nic->ctx);
	nic->ctx = NULL;
}

static uint32_t list_ports(const struct verbs_lib *lib, struct ibv_device *device,
                           char (*out)[PROV_TEXT_BYTES], uint32_t max)
{
	struct ibv_context *ctx = lib->open_device(device);
	struct ibv_device_attr attr;
	struct ibv_port_attr port;
	uint32_t count = 0;

	if (!ctx)
		return 0;
	if (lib->query_device(ctx, &attr) != 0)
		attr.phys_port_cnt = 0;
	for (uint32_t i = 1; i <= attr.phys_port_cnt && count < max; i++) {
		if (verbs_lib_query_port(lib, ctx, (uint8_t)i, &port) != 0 ||
		    port.state != IBV_PORT_ACTIVE)
			continue;
		(void)snprintf(out[count++], PROV_TEXT_BYTES, "%s:%u", lib->get_device_name(device),
		               i);
	}
	(void)lib->close_device(ctx);
	return count;
}

uint32_t verbs_op_list_nics(char (*out)[PROV_TEXT_BYTES], uint32_t max)
{
	char why[PROV_TEXT_BYTES];
	const struct verbs_lib *lib = verbs_lib_get(why, sizeof(why));
	struct ibv_device **list;
	uint32_t total = 0;
	int count = 0;

	if (!lib) {
		LOG_DEBUG("%s", why);
		return 0;
	}
	list = lib->get_device_list(&count);
	if (!list)
		return 0;
	for (int i = 0; i < count; i++)
		total += list_ports(lib, list[i], out + total, max - total);
	lib->free_device_list(list);
	return total;
}
