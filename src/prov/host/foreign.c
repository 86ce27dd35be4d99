/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/host/foreign.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

ssize_t host_foreign_fetch_many(pid_t pid, const struct iovec *to, const struct iovec *from,
                                size_t count, int *out_errno)
{
	ssize_t got = -1;

	if (pid <= 0) {
		*out_errno = ESRCH;
		return -1;
	}
	got = process_vm_readv(pid, to, count, from, count, 0);
	if (got < 0)
		*out_errno = errno;
	return got;
}

int host_foreign_fetch(pid_t pid, uint64_t addr, void *out, size_t len_bytes)
{
	struct iovec to = { out, len_bytes };
	struct iovec from = { (void *)(uintptr_t)addr, len_bytes };
	int code = 0;
	ssize_t got = host_foreign_fetch_many(pid, &to, &from, 1, &code);

	if (got < 0)
		return code;
	return (size_t)got == len_bytes ? 0 : EFAULT;
}

int host_foreign_pidfd(pid_t pid)
{
	return pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

ssize_t host_foreign_store_many(pid_t pid, int pidfd, const struct iovec *to,
                                const struct iovec *from, size_t count, int *out_errno)
{
	struct pollfd pfd = { .fd = pidfd, .events = POLLIN };
	ssize_t got;

	/* A number alone may name a successor by now; as long as the descriptor is silent it is
	 * the process that we know. */
	if (pid <= 0 || pidfd < 0 || poll(&pfd, 1, 0) != 0) {
		*out_errno = ESRCH;
		return -1;
	}
	got = process_vm_writev(pid, from, count, to, count, 0);
	if (got < 0)
		*out_errno = errno;
	return got;
}

int host_foreign_store(pid_t pid, int pidfd, uint64_t addr, const void *from, size_t len_bytes)
{
	struct iovec to = { (void *)(uintptr_t)addr, len_bytes };
	struct iovec src = { (void *)(uintptr_t)from, len_bytes };
	int code = 0;
	ssize_t got = host_foreign_store_many(pid, pidfd, &to, &src, 1, &code);

	if (got < 0)
		return code;
	return (size_t)got == len_bytes ? 0 : EFAULT;
}

const char *host_foreign_reason(int code)
{
	switch (code) {
	case 0:
		return "what it fetched was not what this process has";
	case EPERM:
		return "the kernel forbids reading this process's memory (Yama's ptrace_scope, a "
		       "seccomp filter, another user, or PR_SET_DUMPABLE 0)";
	case ESRCH:
		return "the other process cannot name this one (another pid namespace)";
	case EOPNOTSUPP:
		return "the other process's setting host_way is ring";
	case ENOSYS:
		return "the kernel, or a seccomp filter, has no process_vm_readv";
	default:
		return strerror(code);
	}
}
