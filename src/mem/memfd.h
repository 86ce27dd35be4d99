/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEM_MEMFD_H
#define MEM_MEMFD_H

#include <stddef.h>

#include <wimm/status.h>

/* Memory that several processes map: a memfd sealed against shrinking, growing and unsealing, so
 * that nobody who has the descriptor can make another one's access fault. */

/* A new one, sealed, zero-filled. The descriptor is close-on-exec. *out_errno: why not.
 * Returns OK, E_NOMEM, E_SYSTEM. */
WIMM_MUST_CHECK wimm_status memfd_make(const char *name, size_t len_bytes, int *out_fd,
                                       int *out_errno);
/* Whether a descriptor that came from elsewhere is such a memfd of exactly that length, on memory
 * that cannot run out under a mapping (no hugetlb pages). Returns OK, E_PROTOCOL. */
WIMM_MUST_CHECK wimm_status memfd_check(int fd, size_t len_bytes);
/* Map it for reading and writing; a child of a fork does not get the mapping.
 * Returns OK, E_NOMEM. */
WIMM_MUST_CHECK wimm_status memfd_map(int fd, size_t len_bytes, void **out);
void memfd_unmap(void *addr, size_t len_bytes);

#endif
