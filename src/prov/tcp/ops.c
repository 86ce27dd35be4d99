/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/providers.h"

#include "prov/tcp/addr.h"
#include "prov/tcp/ctl.h"
#include "prov/tcp/dev.h"
#include "prov/tcp/nics.h"
#include "prov/tcp/path.h"

#include <inttypes.h>
#include <stdio.h>

static void op_addr(const struct prov_dev *dev, struct prov_addr *out)
{
	tcp_addr_encode(&((const struct tcp_dev *)dev)->local, out);
}

static wimm_status op_reg(struct prov_dev *dev, void *addr, uint64_t len_bytes, uint32_t flags,
                          uint64_t core_key, uint64_t *out_key, struct prov_error *error)
{
	struct prov_regions *regions = &((struct tcp_dev *)dev)->regions;
	wimm_status st = prov_regions_add(regions, addr, len_bytes, (flags & PROV_REG_REMOTE) != 0,
	                                  core_key);

	if (st == WIMM_OK) {
		*out_key = core_key;
		return WIMM_OK;
	}
	*error = (struct prov_error){ 0 };
	(void)snprintf(error->text, sizeof(error->text),
	               "tcp: cannot register %" PRIu64 " bytes as region %" PRIu32 " of %" PRIu32
	               ": %s",
	               len_bytes, PROV_KEY_SLOT(core_key), regions->count, wimm_status_text(st));
	return st;
}

static void op_dereg(struct prov_dev *dev, uint64_t key)
{
	prov_regions_remove(&((struct tcp_dev *)dev)->regions, key);
}

const struct prov_ops prov_tcp_ops = {
	.abi = PROV_ABI,
	.name = "tcp",
	.open = tcp_op_open,
	.close = tcp_op_close,
	.addr = op_addr,
	.list_nics = tcp_op_list_nics,
	.addr_format = tcp_op_addr_format,
	.addr_parse = tcp_op_addr_parse,
	.reg = op_reg,
	.dereg = op_dereg,
	.ctl_open = tcp_op_ctl_open,
	.ctl_set_context = tcp_op_ctl_set_context,
	.ctl_send = tcp_op_ctl_send,
	.ctl_close = tcp_op_ctl_close,
	.path_open = tcp_op_path_open,
	.path_connect = tcp_op_path_connect,
	.path_close = tcp_op_path_close,
	.post = tcp_op_post,
	.post_pages = prov_post_pages_none,
	.forget = prov_forget_none,
	.cancel = tcp_op_cancel,
	.poll = tcp_op_poll,
	.next_ns = tcp_op_next_ns,
	.fd = tcp_op_fd,
	.arm = tcp_op_arm,
	.warm = prov_warm_none,
};
