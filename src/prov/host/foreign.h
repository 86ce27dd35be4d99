/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_HOST_FOREIGN_H
#define PROV_HOST_FOREIGN_H

/* Reading and writing another process's memory, where the kernel allows it. */

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

/* All of len_bytes from one place. 0, or an errno. pid 0: a process that this one cannot name. */
int host_foreign_fetch(pid_t pid, uint64_t addr, void *out, size_t len_bytes);
/* The same for many places, as far as it goes: bytes fetched, or -1 and *out_errno. */
ssize_t host_foreign_fetch_many(pid_t pid, const struct iovec *to, const struct iovec *from,
                                size_t count, int *out_errno);
/* Write to many places of a process that pidfd says is alive. Bytes written, or -1 and
 * *out_errno. */
ssize_t host_foreign_store_many(pid_t pid, int pidfd, const struct iovec *to,
                                const struct iovec *from, size_t count, int *out_errno);
/* All of len_bytes to one place. 0, or an errno. */
int host_foreign_store(pid_t pid, int pidfd, uint64_t addr, const void *from, size_t len_bytes);
/* Readable when the process is gone; -1: the kernel has none. */
int host_foreign_pidfd(pid_t pid);
/* What to expect of this process's memory before any peer has tried, for people. */
void host_foreign_outlook(char *out, size_t out_bytes);
/* What an errno of these means here, for people. */
const char *host_foreign_reason(int code);

#endif
