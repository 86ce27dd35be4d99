/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/host/foreign.h"

#include <errno.h>
#include <poll.h>
#include <linux/capability.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
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

/* 0 where there is no such policy. */
static int yama_scope(void)
{
	FILE *file = fopen("/proc/sys/kernel/yama/ptrace_scope", "re");
	char text[8] = "";

	if (file == NULL)
		return 0;
	if (fgets(text, sizeof(text), file) == NULL)
		text[0] = '0';
	(void)fclose(file);
	return text[0] >= '0' && text[0] <= '9' ? text[0] - '0' : 0;
}

static bool may_trace_all(void)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2] = { { 0 } };

	return syscall(SYS_capget, &head, data) == 0 &&
	       (data[CAP_TO_INDEX(CAP_SYS_PTRACE)].effective & CAP_TO_MASK(CAP_SYS_PTRACE)) != 0;
}

void host_foreign_outlook(char *out, size_t out_bytes)
{
	uint8_t byte = 1, copy = 0;
	int scope = yama_scope();
	/* No policy but a filter of system calls forbids reading one's own memory. */
	int code = host_foreign_fetch(getpid(), (uint64_t)(uintptr_t)&byte, &copy, 1);

	if (code != 0)
		(void)snprintf(out, out_bytes, "other memory goes through the ring: %s",
		               host_foreign_reason(code));
	else if (scope >= 3 || (scope != 0 && !may_trace_all()))
		(void)snprintf(out, out_bytes,
		               "other memory goes through the ring: Yama's ptrace_scope is %d "
		               "(sysctl kernel.yama.ptrace_scope)",
		               scope);
	else if (prctl(PR_GET_DUMPABLE) == 0 && !may_trace_all())
		(void)snprintf(out, out_bytes,
		               "other memory goes through the ring: PR_SET_DUMPABLE is 0");
	else
		(void)snprintf(out, out_bytes, "other memory is fetched by the receiver");
}
