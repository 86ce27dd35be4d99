/* SPDX-License-Identifier: Apache-2.0 */
#include "mem/shared.h"

#include "base/alloc.h"
#include "base/list.h"
#include "mem/memfd.h"
#include "plat/mutex.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct mem_shared {
	struct list link;
	uint8_t *addr; /* fixed */
	size_t len_bytes;
	pid_t pid; /* whose it is: a forked child has the list but not the memory */
	int fd;
	uint32_t holds; /* under the lock */
};

static struct mutex lock = MUTEX_INIT_FOR_CHILDREN;
static struct list all TSA(guarded_by(lock)) = { &all, &all };
static pid_t last_pid TSA(guarded_by(lock)); /* who used it last */

static size_t page_round(size_t len_bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	return (len_bytes + page - 1) / page * page;
}

static void ask_for_huge_pages(void *addr, size_t len_bytes)
{
	/* A wish: without them everything works, with more entries in the tables. */
	(void)madvise(addr, len_bytes, MADV_HUGEPAGE);
}

/* A child keeps the records of its parent's, to tell what they were, but not what holds their
 * memory: that is to go when the parent gives it back. */
static void drop_parents(void) TSA(requires_capability(lock))
{
	pid_t pid = getpid();

	if (last_pid == pid)
		return;
	last_pid = pid;
	LIST_FOR_EACH(it, &all) {
		struct mem_shared *m = LIST_ENTRY(it, struct mem_shared, link);

		if (m->pid == pid || m->fd < 0)
			continue;
		(void)close(m->fd);
		m->fd = -1;
	}
}

wimm_status mem_shared_alloc(size_t len_bytes, void **out, int *out_errno)
{
	struct mem_shared *m;
	wimm_status st;
	void *addr;

	*out_errno = ENOMEM;
	if (len_bytes == 0 || len_bytes > SIZE_MAX / 4)
		return WIMM_E_NOMEM;
	m = mem_calloc(1, sizeof(*m));
	if (!m)
		return WIMM_E_NOMEM;
	m->len_bytes = page_round(len_bytes);
	m->pid = getpid();
	st = memfd_make("wimm-memory", m->len_bytes, &m->fd, out_errno);
	if (st != WIMM_OK)
		goto undo_record;
	st = memfd_map(m->fd, m->len_bytes, &addr);
	if (st != WIMM_OK)
		goto undo_fd;
	ask_for_huge_pages(addr, m->len_bytes);
	m->addr = addr;
	mutex_lock(&lock);
	drop_parents();
	list_push_back(&all, &m->link);
	mutex_unlock(&lock);
	*out = addr;
	return WIMM_OK;
undo_fd:
	(void)close(m->fd);
undo_record:
	mem_free(m);
	return st;
}

/* Takes it off the list when nobody holds it. */
static wimm_status take(void *addr, struct mem_shared **out)
{
	wimm_status st = WIMM_E_INVAL;

	mutex_lock(&lock);
	LIST_FOR_EACH(it, &all) {
		struct mem_shared *m = LIST_ENTRY(it, struct mem_shared, link);

		if (m->addr != addr)
			continue;
		if (m->pid != getpid()) {
			/* The parent's, unless one of this process lies there now. */
			st = WIMM_E_FORKED;
			continue;
		}
		st = m->holds != 0 ? WIMM_E_BUSY : WIMM_OK;
		if (st == WIMM_OK) {
			list_remove(&m->link);
			*out = m;
		}
		break;
	}
	mutex_unlock(&lock);
	return st;
}

wimm_status mem_shared_free(void *addr)
{
	struct mem_shared *m = NULL;
	wimm_status st = take(addr, &m);

	if (st != WIMM_OK)
		return st;
	memfd_unmap(m->addr, m->len_bytes);
	(void)close(m->fd);
	mem_free(m);
	return WIMM_OK;
}

static bool holds_range(const struct mem_shared *m, const void *addr, uint64_t len_bytes)
{
	uint64_t offset = (uint64_t)(uintptr_t)addr - (uint64_t)(uintptr_t)m->addr;

	return offset <= m->len_bytes && len_bytes <= m->len_bytes - offset;
}

struct mem_shared *mem_shared_get(const void *addr, uint64_t len_bytes)
{
	struct mem_shared *found = NULL;

	mutex_lock(&lock);
	LIST_FOR_EACH(it, &all) {
		struct mem_shared *m = LIST_ENTRY(it, struct mem_shared, link);

		if (m->pid == getpid() && holds_range(m, addr, len_bytes)) {
			m->holds++;
			found = m;
			break;
		}
	}
	mutex_unlock(&lock);
	return found;
}

void mem_shared_put(struct mem_shared *m)
{
	mutex_lock(&lock);
	m->holds--;
	mutex_unlock(&lock);
}

void mem_shared_view(const struct mem_shared *m, struct mem_shared_view *out)
{
	*out = (struct mem_shared_view){ m->addr, m->len_bytes, m->fd };
}

/* What was never written stays a hole: it costs no memory in the copy either. */
static void copy_content(const struct mem_shared *m, uint8_t *to)
{
	off_t at = 0;

	for (;;) {
		off_t from = lseek(m->fd, at, SEEK_DATA);

		if (from < 0)
			return;
		at = lseek(m->fd, from, SEEK_HOLE);
		if (at <= from)
			at = (off_t)m->len_bytes;
		memcpy(to + from, m->addr + from, (size_t)(at - from));
	}
}

/* The content into a mapping of its own, then that one's pages to the old address. */
wimm_status mem_shared_fence(struct mem_shared *m)
{
	wimm_status st;
	void *fresh;
	int code;
	int fd;

	st = memfd_make("wimm-memory", m->len_bytes, &fd, &code);
	if (st != WIMM_OK)
		return st;
	st = memfd_map(fd, m->len_bytes, &fresh);
	if (st != WIMM_OK)
		goto undo_fd;
	ask_for_huge_pages(fresh, m->len_bytes);
	copy_content(m, fresh);
	/* Moving the mapping replaces the old one in one step: no access in between fails. */
	if (mremap(fresh, m->len_bytes, m->len_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, m->addr) ==
	    MAP_FAILED) {
		st = WIMM_E_SYSTEM;
		goto undo_map;
	}
	(void)close(m->fd);
	m->fd = fd;
	return WIMM_OK;
undo_map:
	memfd_unmap(fresh, m->len_bytes);
undo_fd:
	(void)close(fd);
	return st;
}
