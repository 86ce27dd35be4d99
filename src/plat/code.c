/* SPDX-License-Identifier: Apache-2.0 */
#include "plat/code.h"

#include <link.h>
#include <stddef.h>

/* A program that this library is part of may have much more code than there is cache. */
#define CODE_BYTES_MAX (1u << 20)

/* Of each object that is loaded, until the one that has this function. */
static int look(struct dl_phdr_info *info, size_t size, void *out)
{
	struct plat_code *c = out;
	uintptr_t here = (uintptr_t)plat_code_find;

	(void)size;
	for (size_t i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
		uintptr_t first = info->dlpi_addr + segment->p_vaddr;

		if (segment->p_type != PT_LOAD || here - first >= segment->p_memsz)
			continue;
		c->first = first;
		c->end = first + segment->p_memsz;
		if (c->end - c->first > CODE_BYTES_MAX) { /* around this function */
			c->first = here - first > CODE_BYTES_MAX / 2 ? here - CODE_BYTES_MAX / 2
			                                             : first;
			if (c->end - c->first > CODE_BYTES_MAX)
				c->end = c->first + CODE_BYTES_MAX;
		}
		c->at = c->first;
		return 1;
	}
	return 0;
}

void plat_code_find(struct plat_code *out)
{
	*out = (struct plat_code){ 0, 0, 0 };
	(void)dl_iterate_phdr(look, out);
}
