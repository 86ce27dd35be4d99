/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/providers.h"

#include "prov/verbs/addr.h"
#include "prov/verbs/ctl.h"
#include "prov/verbs/dev.h"
#include "prov/verbs/path.h"
#include "prov/verbs/region.h"

static void op_addr(const struct prov_dev *dev, struct prov_addr *out)
{
	verbs_addr_encode(&((const struct verbs_dev *)dev)->self, out);
}

/* What a queue pair has taken stays taken (caps.can_cancel): the core closes the path instead. */
static void op_cancel(struct prov_path *path, uint64_t token)
{
	(void)path;
	(void)token;
}

const struct prov_ops prov_verbs_ops = {
	.abi = PROV_ABI,
	.name = "verbs",
	.open = verbs_op_open,
	.close = verbs_op_close,
	.addr = op_addr,
	.list_nics = verbs_op_list_nics,
	.addr_format = verbs_op_addr_format,
	.addr_parse = verbs_op_addr_parse,
	.reg = verbs_op_reg,
	.dereg = verbs_op_dereg,
	.ctl_open = verbs_op_ctl_open,
	.ctl_set_context = verbs_op_ctl_set_context,
	.ctl_send = verbs_op_ctl_send,
	.ctl_close = verbs_op_ctl_close,
	.path_open = verbs_op_path_open,
	.path_connect = verbs_op_path_connect,
	.path_close = verbs_op_path_close,
	.post = verbs_op_post,
	.post_pages = prov_post_pages_none,
	.forget = prov_forget_none,
	.cancel = op_cancel,
	.poll = verbs_op_poll,
	.next_ns = verbs_op_next_ns,
	.fd = verbs_op_fd,
	.arm = verbs_op_arm,
	.warm = prov_warm_none,
};
