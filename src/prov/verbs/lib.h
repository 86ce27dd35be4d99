/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_VERBS_LIB_H
#define PROV_VERBS_LIB_H

/* libibverbs, loaded when a verbs NIC is first asked for and never before: the build needs its
 * header only, and a host without it runs everything else. Posting and polling are inline functions
 * of that header that go through the device's own table. */

#include <infiniband/verbs.h>

#include <stddef.h>
#include <stdint.h>

#include "wimm/status.h"

struct _compat_ibv_port_attr;

/* X(name without ibv_, required, type of the result, parameters) */
#define VERBS_LIB_MAP(X)                                                                           \
	X(get_device_list, 1, struct ibv_device **, (int *))                                       \
	X(free_device_list, 1, void, (struct ibv_device **))                                       \
	X(get_device_name, 1, const char *, (struct ibv_device *))                                 \
	X(open_device, 1, struct ibv_context *, (struct ibv_device *))                             \
	X(close_device, 1, int, (struct ibv_context *))                                            \
	X(query_device, 1, int, (struct ibv_context *, struct ibv_device_attr *))                  \
	X(query_port, 1, int, (struct ibv_context *, uint8_t, struct _compat_ibv_port_attr *))     \
	X(query_gid, 1, int, (struct ibv_context *, uint8_t, int, union ibv_gid *))                \
	X(alloc_pd, 1, struct ibv_pd *, (struct ibv_context *))                                    \
	X(dealloc_pd, 1, int, (struct ibv_pd *))                                                   \
	X(reg_mr, 1, struct ibv_mr *, (struct ibv_pd *, void *, size_t, int))                      \
	X(reg_mr_iova2, 0, struct ibv_mr *,                                                        \
	  (struct ibv_pd *, void *, size_t, uint64_t, unsigned int))                               \
	X(reg_dmabuf_mr, 0, struct ibv_mr *,                                                       \
	  (struct ibv_pd *, uint64_t, size_t, uint64_t, int, int))                                 \
	X(dereg_mr, 1, int, (struct ibv_mr *))                                                     \
	X(create_comp_channel, 1, struct ibv_comp_channel *, (struct ibv_context *))               \
	X(destroy_comp_channel, 1, int, (struct ibv_comp_channel *))                               \
	X(create_cq, 1, struct ibv_cq *,                                                           \
	  (struct ibv_context *, int, void *, struct ibv_comp_channel *, int))                     \
	X(destroy_cq, 1, int, (struct ibv_cq *))                                                   \
	X(get_cq_event, 1, int, (struct ibv_comp_channel *, struct ibv_cq **, void **))            \
	X(ack_cq_events, 1, void, (struct ibv_cq *, unsigned int))                                 \
	X(create_srq, 1, struct ibv_srq *, (struct ibv_pd *, struct ibv_srq_init_attr *))          \
	X(destroy_srq, 1, int, (struct ibv_srq *))                                                 \
	X(create_qp, 1, struct ibv_qp *, (struct ibv_pd *, struct ibv_qp_init_attr *))             \
	X(modify_qp, 1, int, (struct ibv_qp *, struct ibv_qp_attr *, int))                         \
	X(destroy_qp, 1, int, (struct ibv_qp *))                                                   \
	X(create_ah, 1, struct ibv_ah *, (struct ibv_pd *, struct ibv_ah_attr *))                  \
	X(destroy_ah, 1, int, (struct ibv_ah *))                                                   \
	X(get_async_event, 1, int, (struct ibv_context *, struct ibv_async_event *))               \
	X(ack_async_event, 1, void, (struct ibv_async_event *))                                    \
	X(event_type_str, 1, const char *, (enum ibv_event_type))                                  \
	X(wc_status_str, 1, const char *, (enum ibv_wc_status))                                    \
	X(fork_init, 0, int, (void))

struct verbs_lib {
#define X(name, required, result, params) result(*name) params;
	VERBS_LIB_MAP(X)
#undef X
	ssize_t (*query_gid_table)(struct ibv_context *, struct ibv_gid_entry *, size_t, uint32_t,
	                           size_t); /* NULL before rdma-core 33 */
};

/* The functions of the library that the setting verbs_library names; loaded once and kept.
 * NULL: not there, `why` says so. Thread: any. Blocks: the first time, for the files. */
const struct verbs_lib *verbs_lib_get(char *why, size_t why_bytes);

/* The whole ibv_port_attr, by whichever entry the library has. 0, or an errno. */
int verbs_lib_query_port(const struct verbs_lib *lib, struct ibv_context *ctx, uint8_t port,
                         struct ibv_port_attr *out);

#endif
