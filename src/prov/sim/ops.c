/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/sim/sim_int.h"

const struct prov_ops prov_sim_ops = {
	.abi = PROV_ABI,
	.name = "sim",
	.open = sim_dev_open,
	.close = sim_dev_close,
	.addr = sim_dev_addr,
	.list_nics = sim_dev_list_nics,
	.addr_format = sim_dev_addr_format,
	.addr_parse = sim_dev_addr_parse,
	.reg = sim_region_reg,
	.dereg = sim_region_dereg,
	.ctl_open = sim_ctl_open,
	.ctl_set_context = sim_ctl_set_context,
	.ctl_send = sim_ctl_send,
	.ctl_close = sim_ctl_close,
	.path_open = sim_path_open,
	.path_connect = sim_path_connect,
	.path_close = sim_path_close,
	.post = sim_wr_post,
	.cancel = sim_wr_cancel,
	.poll = sim_cq_poll,
	.next_ns = sim_cq_next_ns,
	.fd = sim_cq_fd,
	.arm = sim_cq_arm,
};
