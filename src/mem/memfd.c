/* SPDX-License-Identifier: Apache-2.0 */
#include "mem/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

wimm_status memfd_make(const char *name, size_t len_bytes, int *out_fd, int *out_errno)
{
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0) {
		*out_errno = errno;
		return WIMM_E_SYSTEM;
	}
	if (ftruncate(fd, (off_t)len_bytes) != 0 || fcntl(fd, F_ADD_SEALS, SEALS) != 0) {
		*out_errno = errno;
		(void)close(fd);
		return *out_errno == ENOMEM ? WIMM_E_NOMEM : WIMM_E_SYSTEM;
	}
	*out_fd = fd;
	return WIMM_OK;
}

wimm_status memfd_check(int fd, size_t len_bytes)
{
	struct statfs fs;
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS);

	if (seals < 0 || (seals & SEALS) != SEALS || (seals & F_SEAL_WRITE) != 0)
		return WIMM_E_PROTOCOL;
	if (fstat(fd, &st) != 0 || st.st_size < 0 || (size_t)st.st_size != len_bytes)
		return WIMM_E_PROTOCOL;
	if (fstatfs(fd, &fs) != 0 || fs.f_type != TMPFS_MAGIC)
		return WIMM_E_PROTOCOL;
	return WIMM_OK;
}

wimm_status memfd_map(int fd, size_t len_bytes, void **out)
{
	void *addr = mmap(NULL, len_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (addr == MAP_FAILED)
		return WIMM_E_NOMEM;
	if (madvise(addr, len_bytes, MADV_DONTFORK) != 0) {
		(void)munmap(addr, len_bytes);
		return WIMM_E_NOMEM;
	}
	*out = addr;
	return WIMM_OK;
}

void memfd_unmap(void *addr, size_t len_bytes)
{
	(void)munmap(addr, len_bytes);
}
