/* SPDX-License-Identifier: Apache-2.0 */
/* wimm_info_json(): this machine and this build, for people and for bug reports. */
#include "base/config.h"
#include "base/json.h"
#include "mem/cuda_info.h"
#include "mem/gdr.h"
#include "mem/kernels.h"
#include "prov/prov.h"

#include <wimm/engine.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#define NOT_IN_BUILD "not in this build"

/* Descriptors that an engine needs whatever its number of peers. */
#define OWN_DESCRIPTORS 64u

/* What a reader may look for, whether this build has it or not. */
static const struct {
	const char *name;
	const char *what;
	bool pins_memory;
} known[] = {
	{ "tcp", "any host, no RDMA NIC needed; each local address is a NIC", false },
	{ "sim", "simulated NICs inside one process, for tests", false },
	{ "host", "peers on this machine through shared memory", false },
	{ "verbs", "RDMA NICs through libibverbs", true },
	{ "fabric", "AWS EFA and others through libfabric", true },
};
#define KNOWN_COUNT (sizeof(known) / sizeof(known[0]))

static void add_machine(struct json *j)
{
	struct utsname system;

	json_open_object(j, "machine");
	if (uname(&system) == 0) {
		json_text(j, "system", system.sysname);
		json_text(j, "release", system.release);
		json_text(j, "arch", system.machine);
		json_text(j, "host", system.nodename);
	}
	json_i64(j, "cpus", sysconf(_SC_NPROCESSORS_ONLN));
	json_i64(j, "page_bytes", sysconf(_SC_PAGESIZE));
	json_close_object(j);
}

/* --- providers --- */

static void add_caps(struct json *j, const struct prov_caps *caps)
{
	json_open_object(j, "capabilities");
	json_bool(j, "ordered", caps->ordered);
	json_bool(j, "identifies_source", caps->identifies_source);
	json_bool(j, "needs_empty_target", caps->needs_empty_target);
	json_bool(j, "gpu_direct", caps->gpu_direct);
	json_bool(j, "gpu_regions", caps->gpu_regions);
	json_bool(j, "can_cancel", caps->can_cancel);
	json_bool(j, "wait_fd", caps->wait_fd);
	json_u64(j, "max_ctl_bytes", caps->max_ctl_bytes);
	json_u64(j, "post_depth", caps->post_depth);
	json_u64(j, "max_write_bytes", caps->max_write_bytes);
	json_close_object(j);
}

/* Opened for a moment, since only an open NIC tells what it can. */
static void add_nic(struct json *j, const struct prov_ops *ops, const char *nic)
{
	static const uint8_t instance[WIMM_INSTANCE_BYTES] = { 1 };
	struct prov_args args = {
		.nic = nic,
		.instance = instance,
		.peer_timeout_ms = (uint32_t)config_get_u64(CFG_PEER_TIMEOUT_MS),
		.max_regions = 1,
	};
	struct prov_caps caps = { 0 };
	struct prov_error error = { 0 };
	struct prov_dev *dev;
	wimm_status st = ops->open(&args, &caps, &dev, &error);

	json_open_object(j, NULL);
	json_text(j, "nic", nic);
	json_text(j, "status", wimm_status_name(st));
	if (st != WIMM_OK) {
		json_text(j, "error", error.text[0] != '\0' ? error.text : wimm_status_text(st));
	} else {
		ops->close(dev);
		json_text(j, "device", caps.device[0] != '\0' ? caps.device : NULL);
		if (caps.numa_node >= 0)
			json_i64(j, "numa_node", caps.numa_node);
		else
			json_null(j, "numa_node");
		if (caps.link_bytes_per_s != 0)
			json_u64(j, "link_bytes_per_s", caps.link_bytes_per_s);
		else
			json_null(j, "link_bytes_per_s");
		json_text(j, "note", caps.note[0] != '\0' ? caps.note : NULL);
		add_caps(j, &caps);
	}
	json_close_object(j);
}

static void add_providers(struct json *j)
{
	char nics[WIMM_MAX_NICS][PROV_TEXT_BYTES];

	json_open_array(j, "providers");
	for (size_t i = 0; i < KNOWN_COUNT; i++) {
		const struct prov_ops *ops = prov_find(known[i].name);
		uint32_t count = ops != NULL ? ops->list_nics(nics, WIMM_MAX_NICS) : 0;

		json_open_object(j, NULL);
		json_text(j, "name", known[i].name);
		json_text(j, "what", known[i].what);
		json_bool(j, "in_build", ops != NULL);
		json_text(j, "state",
		          ops == NULL  ? NOT_IN_BUILD
		          : count == 0 ? "no NIC found"
		                       : "ready");
		json_open_array(j, "nics");
		for (uint32_t k = 0; k < count; k++)
			add_nic(j, ops, nics[k]);
		json_close_array(j);
		json_close_object(j);
	}
	json_close_array(j);
}

/* What an engine with NICs would do about peers of this machine. */
static void add_same_host(struct json *j)
{
	char rule[CONFIG_TEXT_BYTES];

	config_get_text(CFG_SAME_HOST, rule);
	json_open_object(j, "same_host");
	json_text(j, "setting", rule);
	json_text(j, "meaning",
	          strcmp(rule, "off") == 0
	                  ? "peers of this machine are written to over NICs: setting same_host"
	          : strcmp(rule, "require") == 0
	                  ? "only peers of this machine get a session, and only through its memory"
	                  : "peers of this machine are written to through its memory where the "
	                    "probe at the hello succeeds, else over NICs; each peer's own way is "
	                    "in wimm_peer_get_info()");
	json_close_object(j);
}

static void add_gpu(struct json *j, int device)
{
	struct mem_cuda_card card;
	char pci[32];

	if (!mem_cuda_card(device, &card))
		return;
	(void)snprintf(pci, sizeof(pci), "%04" PRIx32 ":%02" PRIx32 ":%02" PRIx32,
	               (uint32_t)(card.pci >> 32), (uint32_t)(card.pci >> 16) & 0xffff,
	               (uint32_t)card.pci & 0xffff);
	json_open_object(j, NULL);
	json_i64(j, "device", device);
	json_text(j, "name", card.name);
	json_text(j, "pci", pci);
	json_u64(j, "sms", card.sms);
	json_bool(j, "gpu_direct_rdma", card.gpu_direct);
	json_bool(j, "dma_buf", card.dma_buf);
	json_i64(j, "writes_ordering", card.writes_ordering);
	json_text(j, "flush_below_one_switch",
	          mem_flush_text(mem_flush_rule(true, card.writes_ordering, card.flush_options,
	                                        true)));
	json_text(j, "flush", mem_flush_text(mem_cuda_far_rule(&card)));
	json_close_object(j);
}

static void add_memory(struct json *j)
{
	char why[512] = "";
	int count = mem_cuda_count(why, sizeof(why));

	json_open_array(j, "memory");
	json_open_object(j, NULL);
	json_text(j, "kind", "host");
	json_bool(j, "in_build", true);
	json_text(j, "state", "ready");
	json_close_object(j);
	json_open_object(j, NULL);
	json_text(j, "kind", "cuda");
	json_bool(j, "in_build", true);
	json_text(j, "state", count < 0 ? why : count == 0 ? "no card found" : "ready");
	json_bool(j, "kernels", kernels_image() != NULL);
	json_close_object(j);
	json_open_object(j, NULL);
	json_text(j, "kind", "gdrcopy");
	json_bool(j, "in_build", true);
	(void)gdr_state(why, sizeof(why));
	json_text(j, "state", why);
	json_close_object(j);
	json_close_array(j);
	json_open_array(j, "gpus");
	for (int i = 0; i < count; i++)
		add_gpu(j, i);
	json_close_array(j);
}

/* --- limits --- */

static void add_rlim(struct json *j, const char *name, rlim_t value)
{
	if (value == RLIM_INFINITY)
		json_null(j, name);
	else
		json_u64(j, name, value);
}

static bool pins_memory(void)
{
	for (size_t i = 0; i < KNOWN_COUNT; i++)
		if (known[i].pins_memory && prov_find(known[i].name) != NULL)
			return true;
	return false;
}

static void add_memlock(struct json *j)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0)
		return;
	json_open_object(j, NULL);
	json_text(j, "name", "RLIMIT_MEMLOCK");
	json_text(j, "unit", "bytes");
	add_rlim(j, "soft", limit.rlim_cur);
	add_rlim(j, "hard", limit.rlim_max);
	json_bool(j, "enough", limit.rlim_cur == RLIM_INFINITY || !pins_memory());
	json_text(j, "meaning",
	          pins_memory()
	                  ? "RDMA NICs pin every registered region against it"
	                  : "RDMA NICs pin regions against it; this build has none");
	json_text(j, "fix",
	          "ulimit -l unlimited; for good: \"memlock unlimited\" in "
	          "/etc/security/limits.conf, LimitMEMLOCK=infinity in a systemd unit, "
	          "--ulimit memlock=-1 for a container");
	json_close_object(j);
}

static void add_nofile(struct json *j)
{
	uint64_t wanted = OWN_DESCRIPTORS + 2 * config_get_u64(CFG_MAX_PEERS);
	struct rlimit limit;
	char meaning[256];
	uint64_t peers;

	if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
		return;
	peers = limit.rlim_cur > OWN_DESCRIPTORS ? (limit.rlim_cur - OWN_DESCRIPTORS) / 2 : 0;
	json_open_object(j, NULL);
	json_text(j, "name", "RLIMIT_NOFILE");
	json_text(j, "unit", "descriptors");
	add_rlim(j, "soft", limit.rlim_cur);
	add_rlim(j, "hard", limit.rlim_max);
	json_bool(j, "enough", limit.rlim_cur >= wanted);
	if (limit.rlim_cur == RLIM_INFINITY)
		(void)snprintf(meaning, sizeof(meaning), "no limit");
	else
		(void)snprintf(
			meaning, sizeof(meaning),
			"tcp takes a descriptor a peer and one more a path: this is enough for "
			"about %" PRIu64 " peers over one NIC, the setting max_peers allows "
			"%" PRIu64,
			peers, config_get_u64(CFG_MAX_PEERS));
	json_text(j, "meaning", meaning);
	json_text(j, "fix",
	          "ulimit -n up to the hard limit; for good: \"nofile 65536\" in "
	          "/etc/security/limits.conf, LimitNOFILE=65536 in a systemd unit, "
	          "--ulimit nofile=65536 for a container");
	json_close_object(j);
}

/* --- settings --- */

static const char *type_name(config_type type)
{
	static const char *const names[] = { "integer", "bytes", "boolean", "level", "text" };

	return names[type];
}

static void add_settings(struct json *j)
{
	struct config_info info;

	json_open_array(j, "settings");
	for (uint32_t i = 0; config_info_at(i, &info); i++) {
		json_open_object(j, NULL);
		json_text(j, "name", info.name);
		json_text(j, "env", info.env);
		json_text(j, "type", type_name(info.type));
		json_text(j, "unit", info.unit);
		if (info.text_def != NULL) {
			json_text(j, "default", info.text_def);
			json_text(j, "value", info.text);
		} else {
			json_i64(j, "min", info.min);
			json_i64(j, "max", info.max);
			json_i64(j, "default", info.def);
			json_i64(j, "value", info.value);
		}
		json_text(j, "source", config_source_name(info.source));
		json_text(j, "help", info.help);
		json_close_object(j);
	}
	json_close_array(j);
}

wimm_status wimm_info_json(char *out, size_t out_bytes, size_t *out_len)
{
	struct json j;

	if (out_len == NULL || (out == NULL && out_bytes != 0))
		return WIMM_E_INVAL;
	json_init(&j, out, out_bytes);
	json_open_object(&j, NULL);
	json_text(&j, "version", WIMM_VERSION_STRING);
	add_machine(&j);
	add_providers(&j);
	add_same_host(&j);
	add_memory(&j);
	json_open_array(&j, "limits");
	add_memlock(&j);
	add_nofile(&j);
	json_close_array(&j);
	add_settings(&j);
	json_close_object(&j);
	*out_len = json_end(&j);
	return *out_len < out_bytes ? WIMM_OK : WIMM_E_LIMIT;
}
