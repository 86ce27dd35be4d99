/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/providers.h"

#include "prov/host/addr.h"
#include "prov/host/ctl.h"
#include "prov/host/dev.h"
#include "prov/host/path.h"

#include <inttypes.h>
#include <stdio.h>

static void op_addr(const struct prov_dev *dev, struct prov_addr *out)
{
	host_name_encode(&((const struct host_dev *)dev)->name, out);
}

static wimm_status op_reg(struct prov_dev *dev, void *addr, uint64_t len_bytes, bool remote,
                          uint64_t core_key, uint64_t *out_key, struct prov_error *error)
{
	struct prov_regions *regions = &((struct host_dev *)dev)->regions;
	wimm_status st = prov_regions_add(regions, addr, len_bytes, remote, core_key);

	if (st == WIMM_OK) {
		*out_key = core_key;
		return WIMM_OK;
	}
	*error = (struct prov_error){ 0 };
	(void)snprintf(error->text, sizeof(error->text),
	               "host: cannot register %" PRIu64 " bytes as region %" PRIu32 " of %" PRIu32
	               ": %s",
	               len_bytes, PROV_KEY_SLOT(core_key), regions->count, wimm_status_text(st));
	return st;
}

static void op_dereg(struct prov_dev *dev, uint64_t key)
{
	prov_regions_remove(&((struct host_dev *)dev)->regions, key);
}

const struct prov_ops prov_host_ops = {
	.abi = PROV_ABI,
	.name = "host",
	.open = host_op_open,
	.close = host_op_close,
	.addr = op_addr,
	.list_nics = host_op_list_nics,
	.addr_format = host_op_addr_format,
	.addr_parse = host_op_addr_parse,
	.reg = op_reg,
	.dereg = op_dereg,
	.ctl_open = host_op_ctl_open,
	.ctl_set_context = host_op_ctl_set_context,
	.ctl_send = host_op_ctl_send,
	.ctl_close = host_op_ctl_close,
	.path_open = host_op_path_open,
	.path_connect = host_op_path_connect,
	.path_close = host_op_path_close,
	.post = host_op_post,
	.cancel = host_op_cancel,
	.poll = host_op_poll,
	.next_ns = host_op_next_ns,
	.fd = host_op_fd,
	.arm = host_op_arm,
};
